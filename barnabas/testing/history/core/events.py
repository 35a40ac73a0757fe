"""Events: what brokers did for clients, as typed values; each has the form of a JSON object.

A request makes an event when the broker knows its outcome, before the answer leaves. A Produce makes one event for each partition,
and so does a Fetch for each partition of which it delivers records. Requests of brokers among themselves make none, except for the
markers of transactions. Offsets are inclusive; −1 and "" stand for "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Final

Batch = tuple[int, int, int, int, bool, bool]  # base and last offset, producer id and epoch, transactional, control
Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class HistoryEvent:
    """What all events have.

    Attributes:
        number: of the event on its broker, from 1 since the broker's start; gaps are events that were forgotten.
        at_ms: the broker's clock, milliseconds since the Unix epoch.
        broker: id of the broker.
        client: client id; "" if the client gave none.
        address: HOST:PORT of the client.
        connection: number of the connection on its broker.
        error: Kafka's name of the error, "" for success.
    """

    kind: ClassVar[str] = ""

    number: int = 0
    at_ms: int = 0
    broker: int = 0
    client: str = ""
    address: str = ""
    connection: int = 0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """The event as JSON object."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Produced(HistoryEvent):
    """The broker has appended a batch, or refused it.

    Attributes:
        base_offset: of the first record, −1 if it was refused.
        crc: the batch's checksum. It does not cover the offset, so a batch that is sent twice has the same one.
        transactional_id: as in the request, which has none under acks without transactions.
        records: key and value of the first records as text, shortened; None for a key or a value that is null.
    """

    kind: ClassVar[str] = "produce"

    topic: str
    partition: int
    base_offset: int = -1
    count: int = 0
    acks: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    transactional_id: str = ""
    crc: int = 0
    size_bytes: int = 0
    records: tuple[tuple[str | None, str | None], ...] = ()

    @property
    def last_offset(self) -> int:
        """Of the last record."""
        return self.base_offset + self.count - 1


@dataclass(frozen=True, kw_only=True)
class Delivered(HistoryEvent):
    """The broker has delivered records of one partition.

    Attributes:
        isolation: "read_committed" or "read_uncommitted".
        fetch_offset: what the request asked for; −1 if the fetch session knew it.
        first_offset, last_offset: of the delivered batches.
        batches: the delivered batches, 1,000 at most.
        aborted: producer id and first offset of the aborted transactions that the answer named.
        group: of which the client is a member, as far as its connection or client id tells; "" if not known.
    """

    kind: ClassVar[str] = "fetch"

    topic: str
    partition: int
    isolation: str = "read_uncommitted"
    fetch_offset: int = -1
    first_offset: int = -1
    last_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    batches: tuple[Batch, ...] = ()
    aborted: tuple[tuple[int, int], ...] = ()
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class ProducerIdGiven(HistoryEvent):
    """InitProducerId: a producer has got its id and epoch, which fences the ones before.

    Attributes:
        asked_id, asked_epoch: of a producer that recovers (KIP-360); −1 from a new one.
    """

    kind: ClassVar[str] = "init_producer_id"

    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    asked_id: int = -1
    asked_epoch: int = -1
    timeout_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class PartitionsAdded(HistoryEvent):
    """AddPartitionsToTxn and AddOffsetsToTxn of a client. Under transactions V2 a Produce adds its partitions itself."""

    kind: ClassVar[str] = "add_partitions"

    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: tuple[Partition, ...] = ()
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class TransactionEnded(HistoryEvent):
    """EndTxn: a client has asked for a commit or an abort; without error it is decided.

    Attributes:
        next_id, next_epoch: for the next transaction, from version 5; else −1.
    """

    kind: ClassVar[str] = "end_txn"

    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    committed: bool = False
    next_id: int = -1
    next_epoch: int = -1


@dataclass(frozen=True, kw_only=True)
class MarkersWritten(HistoryEvent):
    """WriteTxnMarkers: another broker, or an administrator, has had markers written here. A broker's own markers are in the log alone."""

    kind: ClassVar[str] = "markers"

    producer_id: int = -1
    producer_epoch: int = -1
    committed: bool = False
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupChanged(HistoryEvent):
    """A request about a membership; heartbeats only if they change something or fail.

    Attributes:
        api: "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "ConsumerGroupHeartbeat" or "DeleteGroups".
        generation: after the request: generation, or member epoch.
    """

    kind: ClassVar[str] = "group"

    api: str
    group: str
    member: str = ""
    generation: int = -1


@dataclass(frozen=True, kw_only=True)
class OffsetsCommitted(HistoryEvent):
    """Offsets of a group, committed at once or, with a transactional id, when the transaction commits.

    Attributes:
        offsets: topic, partition, the next offset to read; those that were accepted.
        deleted: they were deleted instead.
    """

    kind: ClassVar[str] = "commit_offsets"

    group: str
    member: str = ""
    generation: int = -1
    offsets: tuple[tuple[str, int, int], ...] = ()
    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    deleted: bool = False

    @property
    def by_member(self) -> bool:
        """Whether a member of the group committed."""
        return bool(self.member) or self.generation >= 0


@dataclass(frozen=True, kw_only=True)
class OffsetsLooked(HistoryEvent):
    """ListOffsets: a client has asked for the beginning, the end or a time of partitions, before it moves its position."""

    kind: ClassVar[str] = "list_offsets"

    offsets: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class FaultMet(HistoryEvent):
    """A fault of the test has met the next request of this connection."""

    kind: ClassVar[str] = "fault"

    fault: int = 0
    api: str = ""
    action: str = ""


@dataclass(frozen=True, kw_only=True)
class Closed(HistoryEvent):
    """A client's connection has ended."""

    kind: ClassVar[str] = "closed"


KINDS: Final[dict[str, type[HistoryEvent]]] = {
    each.kind: each
    for each in (
        Produced,
        Delivered,
        ProducerIdGiven,
        PartitionsAdded,
        TransactionEnded,
        MarkersWritten,
        GroupChanged,
        OffsetsCommitted,
        OffsetsLooked,
        FaultMet,
        Closed,
    )
}
_FIELDS: Final = {kind: {each.name: each for each in fields(cls)} for kind, cls in KINDS.items()}


def event_of(value: Mapping[str, Any]) -> HistoryEvent:
    """Reads an event from its JSON object. Fields that it does not know are left out. Raises ValueError: it is no event; the text says why."""
    kind = value.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"an event has one of the kinds {', '.join(KINDS)}, not {kind!r}")
    known = _FIELDS[cls.kind]
    given = {name: _tuples(value[name]) if name in value else _default(cls, name, known) for name in known}
    for name, found in given.items():
        wanted = _TYPES.get(known[name].type, tuple)
        if not isinstance(found, wanted) or (wanted is int and isinstance(found, bool)):
            raise ValueError(f"{cls.kind}: {name} is {found!r}, not {known[name].type}")
    return cls(**given)


_TYPES: Final[dict[Any, type]] = {"int": int, "str": str, "bool": bool}


def _default(cls: type[HistoryEvent], name: str, known: Mapping[str, Any]) -> Any:
    default = known[name].default
    if default is MISSING:
        raise ValueError(f"{cls.kind}: {name} is missing")
    return default


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
