"""Admin: the administrative requests of a Kafka cluster, as coroutines."""

from __future__ import annotations

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.types import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    LogDirDescription,
    NewTopic,
    PartitionLag,
    PartitionReassignment,
    ProducerDescription,
    QuorumDescription,
    ReplicaDescription,
    TransactionDescription,
    TransactionListing,
)

__all__ = [
    "Admin",
    "ClusterDescription",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "LogDirDescription",
    "NewTopic",
    "PartitionLag",
    "PartitionReassignment",
    "ProducerDescription",
    "QuorumDescription",
    "ReplicaDescription",
    "TransactionDescription",
    "TransactionListing",
]
