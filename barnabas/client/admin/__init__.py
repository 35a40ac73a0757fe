"""Admin: the administrative requests of a Kafka cluster, as coroutines."""

from __future__ import annotations

from barnabas.client.admin.acls import AclBinding, AclBindingFilter
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
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType

__all__ = [
    "CONFIG_SOURCES",
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
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
    "PatternType",
    "ProducerDescription",
    "QuorumDescription",
    "QuorumReplicaDescription",
    "ReplicaDescription",
    "TransactionDescription",
    "TransactionListing",
]
