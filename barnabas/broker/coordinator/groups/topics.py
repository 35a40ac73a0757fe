"""Topics: what the group coordinator reads of the cluster's metadata.

The metadata image of the node is a `Topics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Protocol
from zlib import crc32

from barnabas.protocol.checksum import crc32c


class Topics(Protocol):
    """The topics of the cluster as this node knows them."""

    @property
    def offset(self) -> int:
        """Metadata offset of the last change."""
        ...

    @property
    def topics_by_name(self) -> Mapping[str, Any]:
        """All topics by name. Every change of a topic makes a new mapping, so `is` tells whether one changed."""
        ...

    def topic_id(self, name: str) -> bytes | None:
        """Id of a topic; None if the topic does not exist."""
        ...

    def topic_name(self, topic_id: bytes) -> str | None:
        """Name of a topic; None if the topic does not exist."""
        ...

    def partition_count(self, name: str) -> int:
        """Number of partitions of a topic; 0 if the topic does not exist."""
        ...


def existing_names(names: Set[str], topics: Topics) -> Set[str]:
    """Returns the names that topics have."""
    return topics.topics_by_name.keys() & names


def metadata_hash(names: set[str], topics: Topics) -> int:
    """Hashes id and number of partitions of the named topics (KIP-1101); 0 if none of them exists.

    The hash changes if one of the topics is created, deleted or gets partitions. Kafka uses another hash function. A
    group that moves from Kafka to Barnabas or back therefore gets one new group epoch, and all members keep their
    partitions.
    """
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
