"""Huge: a row of the tables of huge requests, and what the requests of all families use.

`BrokerObjects` prepares one broker for them: a topic of many partitions, a group with many offsets, a transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any, Final

from barnabas.protocol import registry
from barnabas.protocol.wire import Array, Blob, RecordsView
from tests.support.oracle.wire import Wire
from tests.support.requests import Fields, codes_in, request_of

ELEMENTS: Final = 99_000  # just below DECODED_ELEMENTS_MAX
HALF: Final = ELEMENTS // 2
LARGE_BYTES: Final = 7_900_000  # just below FRAME_BYTES_SMALL_MAX
CLOSED: Final = -1_000  # in place of an error code: the broker closed the connection
WIDE: Final = "wide"
GROUP: Final = "huge-group"
TRANSACTION: Final = "huge-transaction"


@dataclass(slots=True)
class BrokerObjects:
    """The objects that the requests name.

    partitions: of the topic WIDE.
    topics: how many topics legitimate requests create and delete.
    """

    partitions: int
    topics: int
    wide_id: bytes = bytes(16)
    producer_id: int = -1
    producer_epoch: int = -1

    def prepare(self, wire: Wire) -> None:
        """Creates the wide topic, a group with an offset for each of its partitions, and a transactional producer."""
        topic = {"name": WIDE, "num_partitions": self.partitions, "replication_factor": 1}
        created = wire.call(request_of("CreateTopics", topics=[topic], timeout_ms=60_000), 7).topics[0]
        assert created.error_code == 0, created
        self.wide_id = created.topic_id
        wire.find_coordinator(GROUP, 0)
        wire.find_coordinator(TRANSACTION, 1)
        answer = wire.call(request_of("OffsetCommit", **commit_of(self.partitions)), 8)
        assert codes_in(answer) == {0}, codes_in(answer)
        identity = wire.call(
            request_of("InitProducerId", transactional_id=TRANSACTION, transaction_timeout_ms=600_000), 4
        )
        assert identity.error_code == 0
        self.producer_id, self.producer_epoch = identity.producer_id, identity.producer_epoch


@dataclass(frozen=True, slots=True)
class Huge:
    """One request of the catalogue. Its name begins with the API.

    codes: every error code that its answer may contain; CLOSED for a closed connection.
    listener: "broker" or "controller".
    """

    name: str
    version: int
    codes: Set[int]
    fields: Callable[[BrokerObjects], Fields]
    listener: str = "broker"

    def request(self, world: BrokerObjects) -> Any:
        return request_of(self.name.partition(":")[0], **self.fields(world))


def apis_with_lists() -> Iterator[registry.Api]:
    """The APIs whose request has an array or bytes: the catalogue has a request of each."""
    return (api for api in registry.API.values() if _has_list_or_bytes(api.request))


def _has_list_or_bytes(declared: Any) -> bool:
    for each in declared.FIELDS:
        if isinstance(each.wire, Array | Blob | RecordsView):
            return True
        if isinstance(each.wire, type) and _has_list_or_bytes(each.wire):
            return True
    return False


def names(count: int, stem: str = "n") -> list[str]:
    """Different short names."""
    return [f"{stem}{number}" for number in range(count)]


def named(found: list[str], **fields: Any) -> list[Fields]:
    """A structure with the same fields for each name."""
    return [{"name": name, **fields} for name in found]


def numbered(count: int, first: int = 0, step: int = 1, *, key: str = "partition_index", **fields: Any) -> list[Fields]:
    """A structure with the same fields for each partition."""
    return [{key: first + n * step, **fields} for n in range(count)]


def id_of(number: int) -> bytes:
    """An id that no topic has."""
    return struct.pack(">QQ", 1, number + 1)


def commit_of(count: int, topic: str = WIDE, text: str = "", group: str = GROUP) -> Fields:
    """Commits an offset for each of `count` partitions."""
    parts = [{"partition_index": n, "committed_offset": n, "committed_metadata": text} for n in range(count)]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "topics": [{"name": topic, "partitions": parts}]}
