"""Link and Cut: what a test writes about the network.

    with kafka.partition([1], [2, 3]):
        ...
    kafka.link("client:billing-*", 2).latency(0.05, jitter=0.01).bandwidth(64)

The words are those of Toxiproxy.

Each call takes about a millisecond, so a coroutine may use it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Self

from barnabas.testing.errors import KitError
from barnabas.testing.world.sides import Direction, Side
from barnabas.testing.world.surroundings import LinkState, Surroundings

SECONDS_MAX: Final = 3_600.0
BYTES_MAX: Final = 1 << 40


class _Removable:
    """Links that a test has shaped, until `_remove`."""

    def __init__(self, world: Surroundings, states: list[LinkState]) -> None:
        self._world = world
        self._states = states

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._world.host.wait(self._world.remove_links(self._states))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._world.host.wait_async(self._world.remove_links(self._states))


class Cut(_Removable):
    """Links that are cut, as if a cable were pulled. With `with`, its end heals them."""

    def heal(self) -> None:
        """The links work again. What was sent during the cut arrives on connections that both sides have kept."""
        self._world.host.wait(self._world.remove_links(self._states))

    def __repr__(self) -> str:
        return f"<cut between {', '.join(f'{each.one} and {each.two}' for each in self._states)}>"


class Link(_Removable):
    """The link between two sides. Each method returns the link, so calls can be chained; the last call of a method counts.

    Its methods act on both directions, unless `link(…, direction=…)` has said otherwise. With `with`, its end removes what was set.
    """

    def __init__(self, world: Surroundings, one: Side, two: Side, direction: Direction) -> None:
        self._state = LinkState(one, two)
        super().__init__(world, [self._state])
        self._direction = direction
        self._resets = 0

    def latency(self, seconds: float, *, jitter: float = 0.0) -> Self:
        """Every byte arrives this much later. A new connection takes twice the time.

        Args:
            jitter: the most, in seconds, that is added to or taken from the latency of each piece of data at random.
        """
        _number("latency", seconds, SECONDS_MAX, "seconds")
        _number("jitter", jitter, SECONDS_MAX, "seconds")
        if jitter > seconds:
            raise KitError(f"latency({seconds!r}, jitter={jitter!r}): the jitter is at most the latency")
        return self._change(latency_s=float(seconds), jitter_s=float(jitter))

    def bandwidth(self, rate: float) -> Self:
        """The link carries at most `rate` kB (1,000 bytes) a second in each direction, on each connection."""
        _number("bandwidth", rate, BYTES_MAX, "kB a second", least=1e-3)
        return self._change(bytes_per_s=rate * 1000.0)

    def slow_close(self, delay: float) -> Self:
        """The other side learns the end of a connection `delay` seconds later."""
        _number("slow_close", delay, SECONDS_MAX, "seconds")
        return self._change(slow_close_s=float(delay))

    def reset_peer(self, timeout: float = 0.0) -> Self:
        """Connections are reset `timeout` seconds after this call, new ones after they were made. Each call begins the wait anew."""
        _number("reset_peer", timeout, SECONDS_MAX, "seconds")
        self._resets += 1
        return self._change(reset_s=float(timeout), resets=self._resets)

    def limit_data(self, size: int) -> Self:
        """A connection closes when it has carried `size` more bytes in a direction.

        They count from this call on; a second call with the same number changes nothing."""
        _whole("limit_data", size, BYTES_MAX)
        return self._change(bytes_max=size)

    def slicer(self, average_size: int, size_variation: int = 0, delay: float = 0.0) -> Self:
        """Data arrive in small pieces.

        Args:
            average_size: bytes of a piece.
            size_variation: the most bytes that a piece is larger or smaller; less than `average_size`.
            delay: seconds between two pieces.
        """
        _whole("slicer", average_size, BYTES_MAX, least=1)
        _whole("slicer: size_variation", size_variation, average_size - 1)
        _number("slicer: delay", delay, SECONDS_MAX, "seconds")
        return self._change(slice_bytes=average_size, slice_variation=size_variation, slice_delay_s=float(delay))

    def remove(self) -> None:
        """The link is as before; what it delayed arrives at once."""
        self._world.host.wait(self._world.remove_links(self._states))

    def _change(self, **values: Any) -> Self:
        state = self._state
        there = state.there if self._direction == "in" else replace(state.there, **values)
        back = state.back if self._direction == "out" else replace(state.back, **values)
        self._world.host.wait(self._world.set_flows((state, there, back)))
        return self

    def __repr__(self) -> str:
        return f"<link between {self._state.one} and {self._state.two}>"


def _number(what: str, value: object, most: float, unit: str, least: float = 0.0) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise KitError(f"{what}: {value!r} is not possible; write a number of {unit} from {least:g} to {most:g}")


def _whole(what: str, value: object, most: int, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise KitError(f"{what}: {value!r} is not possible; write a whole number of bytes from {least} to {most}")
