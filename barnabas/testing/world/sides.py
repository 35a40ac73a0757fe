"""Side: one end of a link: a broker, or the clients whose ids match a pattern. Checks what a test writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from barnabas.testing.errors import KitError, unknown

Direction = Literal["both", "out", "in"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("both", "out", "in")
CLIENTS: Final = "clients"
_CLIENT: Final = "client:"


@dataclass(frozen=True, slots=True)
class Side:
    """Attributes:
    broker: its id; -1: clients.
    client: pattern of client ids.
    """

    broker: int
    client: str = ""

    def __str__(self) -> str:
        if self.broker >= 0:
            return f"broker {self.broker}"
        return CLIENTS if self.client == "*" else f"{_CLIENT}{self.client}"


def side(value: object, check_broker: Callable[[object], int]) -> Side:
    """The side that a test has written: an id of a broker, "clients", or "client:" and a pattern. Raises KitError."""
    if not isinstance(value, str):
        return Side(check_broker(value))
    if value == CLIENTS:
        return Side(-1, "*")
    if value.startswith(_CLIENT) and len(value) > len(_CLIENT):
        return Side(-1, value[len(_CLIENT) :])
    raise KitError(
        f"{unknown('side of a link', value, [CLIENTS])}; write the id of a broker as a number, 'clients', or 'client:' "
        "and a pattern of client ids, for example 'client:billing-*'"
    )


def sides(value: object, check_broker: Callable[[object], int]) -> list[Side]:
    """One side or several. Raises KitError if there is none."""
    several = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if not several:
        raise KitError("a side of a partition is empty: name a broker, for example partition([1], [2, 3])")
    return [side(each, check_broker) for each in several]


def linked_sides(one: object, two: object, check_broker: Callable[[object], int]) -> list[tuple[Side, Side]]:
    """The links between two sets of sides. Raises KitError if they overlap, or both have clients."""
    ones, twos = sides(one, check_broker), sides(two, check_broker)
    for each in ones:
        if each in twos:
            raise KitError(f"{each} is on both sides: partition({one!r}, {two!r}) would cut it off from itself")
    found = [(a, b) for a in ones for b in twos]
    for a, b in found:
        check_link(a, b)
    return found


def check_link(a: Side, b: Side) -> None:
    """Raises KitError for a link that does not exist."""
    if a == b:
        raise KitError(f"a link from {a} to itself does not exist")
    if a.broker < 0 and b.broker < 0:
        raise KitError(f"there is no link between {a} and {b}: at least one side of a link is a broker")


def checked_direction(value: object) -> Direction:
    """Raises KitError for an unknown direction."""
    for known in DIRECTIONS:
        if value == known:
            return known
    raise KitError(unknown("direction", value, DIRECTIONS))
