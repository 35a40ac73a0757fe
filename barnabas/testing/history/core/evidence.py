"""Evidence: indexed events for the checks, and their wording in anomalies."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from barnabas.testing.history.core.events import (
    Closed,
    Delivered,
    FaultMet,
    GroupChanged,
    HistoryEvent,
    OffsetsCommitted,
    OffsetsLooked,
    Produced,
    TransactionEnded,
)

Partition = tuple[str, int]


@dataclass(frozen=True)
class Anomaly:
    """A violation of Kafka's guarantees."""

    name: str  # Jepsen's, for example "lost-write"
    where: str  # partition, group or transactional id
    what: str  # one sentence
    story: tuple[str, ...] = ()  # evidence, one sentence each, in order of time

    def __str__(self) -> str:
        return "\n".join([f"{self.name} in {self.where}: {self.what}", *(f"  - {each}" for each in self.story)])

    def __repr__(self) -> str:
        return f"\n{self}\n"


def clock(at_ms: int) -> str:
    """A time of day, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def who(event: HistoryEvent) -> str:
    """The client of an event."""
    return f"client '{event.client}' ({event.address})" if event.client else f"a client at {event.address}"


def offsets(first: int, last: int) -> str:
    """ "offset 5" or "offsets 5 to 7"."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


class Evidence:
    """Indexed events of one history, in their order."""

    def __init__(self, events: Sequence[HistoryEvent]) -> None:
        self.events = events
        self.produced: dict[Partition, list[Produced]] = defaultdict(list)
        self.delivered: dict[Partition, list[Delivered]] = defaultdict(list)
        self.ended: list[TransactionEnded] = []
        self.commits: list[OffsetsCommitted] = []
        self.changes: list[GroupChanged] = []
        self.looked: list[OffsetsLooked] = []
        self.places = {id(event): place for place, event in enumerate(events)}
        self._met: dict[tuple[int, int], list[tuple[int, FaultMet]]] = defaultdict(list)
        self._closed: dict[tuple[int, int, str], int] = {}
        for place, event in enumerate(events):
            self._sort(place, event)

    def _sort(self, place: int, event: HistoryEvent) -> None:
        if isinstance(event, Produced):
            self.produced[event.topic, event.partition].append(event)
        elif isinstance(event, Delivered):
            self.delivered[event.topic, event.partition].append(event)
        elif isinstance(event, TransactionEnded):
            self.ended.append(event)
        elif isinstance(event, OffsetsCommitted):
            self.commits.append(event)
        elif isinstance(event, GroupChanged):
            self.changes.append(event)
        elif isinstance(event, OffsetsLooked):
            self.looked.append(event)
        elif isinstance(event, FaultMet):
            self._met[event.broker, event.connection].append((place, event))
        elif isinstance(event, Closed):
            self._closed[event.broker, event.connection, event.address] = place

    @property
    def partitions(self) -> list[Partition]:
        """That clients wrote to or read from."""
        return sorted({*self.produced, *self.delivered})

    def unheard(self, event: HistoryEvent, before: HistoryEvent) -> str:
        """Why the client may have missed the response before a later event; "" if it received it."""
        start, end = self.places[id(event)], self.places[id(before)]
        met = [each for place, each in self._met.get((event.broker, event.connection), ()) if place < start]
        last = met[-1] if met else None
        if last is not None and not self._between(last, event) and last.action in _HIDING:
            return f"fault {last.action}"
        closed = self._closed.get((event.broker, event.connection, event.address))
        if closed is not None and start < closed < end and not self._between(event, None):
            return "its connection ended"
        return ""

    def _between(self, first: HistoryEvent, last: HistoryEvent | None) -> bool:
        """Whether another write of the same connection lies between two events; None: after the first one."""
        start = self.places[id(first)]
        end = len(self.events) if last is None else self.places[id(last)]
        writes = self._writes.get((first.broker, first.connection, first.address), [])
        after = bisect_right(writes, start)
        return after < len(writes) and writes[after] < end

    @cached_property
    def _writes(self) -> dict[tuple[int, int, str], list[int]]:
        found: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        for place, event in enumerate(self.events):
            if isinstance(event, Produced):
                found[event.broker, event.connection, event.address].append(place)
        return found

    @cached_property
    def groups_of_clients(self) -> dict[tuple[str, str], set[str]]:
        """By client id and host: the groups of which it was a member."""
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for each in self.changes:
            if each.member and not each.error:
                found[client_of(each)].add(each.group)
        return found

    def readers(self, group: str) -> set[tuple[str, str]]:
        """Client ids and hosts of the members of a group."""
        return {client for client, groups in self.groups_of_clients.items() if group in groups}


_HIDING = frozenset({"disconnect", "drop", "error", "late", "duplicate", "rewrite", "hold", "delay", "throttle"})


def client_of(event: HistoryEvent) -> tuple[str, str]:
    """Client id and host: what the connections of one client have in common."""
    return event.client, event.address.rpartition(":")[0]


def with_groups(events: Sequence[HistoryEvent]) -> tuple[HistoryEvent, ...]:
    """The same events; deliveries to a client that is a member of one group have its name."""
    groups = Evidence(events).groups_of_clients
    return tuple(
        replace(each, group=next(iter(groups[client_of(each)])))
        if isinstance(each, Delivered) and len(groups.get(client_of(each), ())) == 1
        else each
        for each in events
    )


def first_and_count(found: Iterable[Anomaly], most: int) -> list[Anomaly]:
    """The first anomalies of each name, and how many more there are."""
    kept: list[Anomaly] = []
    counts: dict[str, int] = defaultdict(int)
    for each in found:
        counts[each.name] += 1
        if counts[each.name] <= most:
            kept.append(each)
    return kept
