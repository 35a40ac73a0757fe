"""Huge: a row of the tables of huge requests, and what the requests of all families use.

`BrokerObjects` prepares one broker for them: a topic of many partitions, a group with many offsets, a transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any, Final

from barnabas.protocol import registry
from barnabas.protocol.messages import admin, groups, transactions
from barnabas.protocol.wire import Array, Blob, RecordsView
from tests.support.oracle.wire import Wire

__all__ = [
    "CLOSED",
    "ELEMENTS",
    "GROUP",
    "HALF",
    "LARGE_BYTES",
    "TRANSACTION",
    "WIDE",
    "BrokerObjects",
    "Huge",
    "apis_with_lists",
    "codes_in",
    "commit_of",
    "id_of",
    "names",
]

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
        created = wire.call(
            admin.CreateTopicsRequest(
                topics=[admin.CreatableTopic(name=WIDE, num_partitions=self.partitions, replication_factor=1)],
                timeout_ms=60_000,
            ),
            7,
        ).topics[0]
        assert created.error_code == 0, created
        self.wide_id = created.topic_id
        wire.find_coordinator(GROUP, 0)
        wire.find_coordinator(TRANSACTION, 1)
        answer = wire.call(commit_of(self.partitions), 8)
        assert codes_in(answer) == {0}, codes_in(answer)
        identity = wire.call(
            transactions.InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=600_000), 4
        )
        assert identity.error_code == 0
        self.producer_id, self.producer_epoch = identity.producer_id, identity.producer_epoch


@dataclass(frozen=True, slots=True)
class Huge:
    """One request of the catalogue.

    codes: every error code that its answer may contain; CLOSED for a closed connection.
    listener: "broker" or "controller".
    """

    name: str
    version: int
    codes: Set[int]
    request: Callable[[BrokerObjects], Any]
    listener: str = "broker"


def codes_in(answer: Any) -> set[int]:
    """All error codes of an answer, at any depth."""
    found: set[int] = set()
    stack = [answer]
    while stack:
        item = stack.pop()
        for declared in item.FIELDS:
            value = getattr(item, declared.name)
            if declared.name in ("error_code", "partition_error_code"):
                found.add(value)
            elif isinstance(value, list):
                if value and hasattr(value[0], "FIELDS"):
                    stack.extend(value)
            elif hasattr(value, "FIELDS"):
                stack.append(value)
    return found


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


def id_of(number: int) -> bytes:
    """An id that no topic has."""
    return struct.pack(">QQ", 1, number + 1)


def commit_of(count: int, topic: str = WIDE, text: str = "", group: str = GROUP) -> groups.OffsetCommitRequest:
    """Commits an offset for each of `count` partitions."""
    parts = [
        groups.OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata=text)
        for n in range(count)
    ]
    return groups.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[groups.OffsetCommitRequestTopic(name=topic, partitions=parts)],
    )
