"""Topics: the group coordinator's view of the metadata image."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Protocol
from zlib import crc32

from barnabas.protocol.checksum import crc32c


class Topics(Protocol):
    """The topics of the cluster as this node knows them."""

    @property
    def offset(self) -> int: ...

    @property
    def topics_by_name(self) -> Mapping[str, Any]:
        """Every change of a topic makes a new mapping: compare by `is`."""
        ...

    def topic_id(self, name: str) -> bytes | None: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def partition_count(self, name: str) -> int:
        """0 if the topic does not exist."""
        ...


def existing_names(names: Set[str], topics: Topics) -> Set[str]:
    return topics.topics_by_name.keys() & names


def metadata_hash(names: set[str], topics: Topics) -> int:
    """Hash of ids and partition counts (KIP-1101); 0 if no topic exists. Not Kafka's: a group that moves gets one new group epoch."""
    parts = [
        f"{name}:{topic_id.hex()}:{topics.partition_count(name)}"
        for name in sorted(existing_names(names, topics))
        if (topic_id := topics.topic_id(name)) is not None
    ]
    if not parts:
        return 0
    text = "\n".join(parts).encode("utf-8", "surrogatepass")
    both = crc32c(text) << 32 | crc32(text)  # two polynomials; a cryptographic hash would have to be loaded at start
    return both - (1 << 64) if both >> 63 else both
