"""Admin: the administrative requests of a Kafka cluster, as coroutines."""

from __future__ import annotations

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.configs import ConfigResource
from barnabas.client.admin.types import (
    CONFIG_SOURCES,
    BrokerDescription,
    ClientQuotas,
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    FeatureDescription,
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    LogDirDescription,
    NewTopic,
    PartitionLag,
    PartitionReassignment,
    ProducerDescription,
    QuorumDescription,
    QuorumReplicaDescription,
    ReplicaDescription,
    TransactionDescription,
    TransactionListing,
)

__all__ = [
    "CONFIG_SOURCES",
    "Admin",
    "BrokerDescription",
    "ClientQuotas",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSynonym",
    "FeatureDescription",
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "LogDirDescription",
    "NewTopic",
    "PartitionLag",
    "PartitionReassignment",
    "ProducerDescription",
    "QuorumDescription",
    "QuorumReplicaDescription",
    "ReplicaDescription",
    "TransactionDescription",
    "TransactionListing",
]
