"""Records of `__cluster_metadata` (Kafka 4.3.1): frame version (1), record type and record version as unsigned varints, then the body.
`encode_record` writes the version that Kafka 4.3 writes; `decode_record` reads any version declared here.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.primitives import encode_uvarint, read_uvarint
from barnabas.protocol.schema import RecordMessage, Struct, codec, encode, field
from barnabas.protocol.wire import Array, Bool, Bytes, Float64, Int8, Int16, Int32, Int64, String, UInt16, Uuid

FRAME_VERSION = 1
NO_LEADER_CHANGE = -2  # PartitionChangeRecord.leader: keeps the leader


class DeclaredRecord(RecordMessage):
    """Base of the records of `__cluster_metadata`."""


class RegisteredEndpoint(Struct):
    """A listener of a registered node."""

    name: str = field(String)
    host: str = field(String)
    port: int = field(UInt16)
    security_protocol: int = field(Int16)


class RegisteredFeature(Struct):
    """A feature that a registered node supports, with its range of levels."""

    name: str = field(String)
    min_supported_version: int = field(Int16)
    max_supported_version: int = field(Int16)


class RegisterBrokerRecord(DeclaredRecord, api_key=0, versions=(0, 4), flexible_since=0):
    """A broker process has started. `broker_epoch` is the offset of this record."""

    broker_id: int = field(Int32)
    is_migrating_zk_broker: bool = field(Bool, since=2)
    incarnation_id: bytes = field(Uuid)
    broker_epoch: int = field(Int64)
    end_points: list[RegisteredEndpoint] = field(Array(RegisteredEndpoint))
    features: list[RegisteredFeature] = field(Array(RegisteredFeature))
    rack: str | None = field(String, nullable_since=0)
    fenced: bool = field(Bool, default=True)
    in_controlled_shutdown: bool = field(Bool, since=1)
    log_dirs: list[bytes] = field(Array(Uuid), since=3, tag=0)
    cordoned_log_dirs: list[bytes] | None = field(Array(Uuid), since=4, nullable_since=4, default=None, tag=1)


class UnregisterBrokerRecord(DeclaredRecord, api_key=1, versions=(0, 0), flexible_since=0):
    """A broker is removed."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64)


class TopicRecord(DeclaredRecord, api_key=2, versions=(0, 0), flexible_since=0):
    """A topic without partitions."""

    name: str = field(String)
    topic_id: bytes = field(Uuid)


class PartitionRecord(DeclaredRecord, api_key=3, versions=(0, 2), flexible_since=0):
    """All attributes of a partition."""

    partition_id: int = field(Int32, default=-1)
    topic_id: bytes = field(Uuid)
    replicas: list[int] = field(Array(Int32))
    isr: list[int] = field(Array(Int32))
    removing_replicas: list[int] = field(Array(Int32))
    adding_replicas: list[int] = field(Array(Int32))
    leader: int = field(Int32, default=-1)
    leader_recovery_state: int = field(Int8, tag=0)
    leader_epoch: int = field(Int32, default=-1)
    partition_epoch: int = field(Int32, default=-1)
    directories: list[bytes] = field(Array(Uuid), since=1)
    eligible_leader_replicas: list[int] | None = field(Array(Int32), since=2, nullable_since=2, default=None, tag=1)
    last_known_elr: list[int] | None = field(Array(Int32), since=2, nullable_since=2, default=None, tag=2)


class ConfigRecord(DeclaredRecord, api_key=4, versions=(0, 0), flexible_since=0):
    """One configuration value of a topic (2), broker (4) or other resource; None deletes it."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"value"})  # it may be a password

    resource_type: int = field(Int8)
    resource_name: str = field(String)
    name: str = field(String)
    value: str | None = field(String, nullable_since=0)


class PartitionChangeRecord(DeclaredRecord, api_key=5, versions=(0, 2), flexible_since=0):
    """Changes of a partition; raises its partition epoch by one, and its leader epoch if `leader` is set."""

    partition_id: int = field(Int32, default=-1)
    topic_id: bytes = field(Uuid)
    isr: list[int] | None = field(Array(Int32), nullable_since=0, default=None, tag=0)
    leader: int = field(Int32, default=NO_LEADER_CHANGE, tag=1)
    replicas: list[int] | None = field(Array(Int32), nullable_since=0, default=None, tag=2)
    removing_replicas: list[int] | None = field(Array(Int32), nullable_since=0, default=None, tag=3)
    adding_replicas: list[int] | None = field(Array(Int32), nullable_since=0, default=None, tag=4)
    leader_recovery_state: int = field(Int8, default=-1, tag=5)
    eligible_leader_replicas: list[int] | None = field(Array(Int32), since=2, nullable_since=2, default=None, tag=6)
    last_known_elr: list[int] | None = field(Array(Int32), since=2, nullable_since=2, default=None, tag=7)
    directories: list[bytes] | None = field(Array(Uuid), since=1, nullable_since=1, default=None, tag=8)


class FenceBrokerRecord(DeclaredRecord, api_key=7, versions=(0, 0), flexible_since=0):
    """The broker may not lead until it is unfenced."""

    id: int = field(Int32)
    epoch: int = field(Int64)


class UnfenceBrokerRecord(DeclaredRecord, api_key=8, versions=(0, 0), flexible_since=0):
    """The broker may lead."""

    id: int = field(Int32)
    epoch: int = field(Int64)


class RemoveTopicRecord(DeclaredRecord, api_key=9, versions=(0, 0), flexible_since=0):
    """A topic is deleted with its partitions and configuration."""

    topic_id: bytes = field(Uuid)


class DelegationTokenRecord(DeclaredRecord, api_key=10, versions=(0, 0), flexible_since=0):
    """A delegation token was made or renewed. Unix times in ms."""

    owner: str = field(String)
    requester: str = field(String)
    renewers: list[str] = field(Array(String))
    issue_timestamp: int = field(Int64)
    max_timestamp: int = field(Int64)
    expiration_timestamp: int = field(Int64)
    token_id: str = field(String)


class UserScramCredentialRecord(DeclaredRecord, api_key=11, versions=(0, 0), flexible_since=0):
    """The SCRAM credential of a user for one mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512)."""

    name: str = field(String)
    mechanism: int = field(Int8)
    salt: bytes = field(Bytes)
    stored_key: bytes = field(Bytes)
    server_key: bytes = field(Bytes)
    iterations: int = field(Int32)

    def __repr__(self) -> str:  # without salt and keys
        return (
            f"UserScramCredentialRecord(name={self.name!r}, mechanism={self.mechanism}, iterations={self.iterations})"
        )


class FeatureLevelRecord(DeclaredRecord, api_key=12, versions=(0, 0), flexible_since=0):
    """A feature is finalized at a level; 0 removes it."""

    name: str = field(String)
    feature_level: int = field(Int16)


class QuotaEntityPart(Struct):
    """A type ("user", "client-id", "ip") and a name, None for the default."""

    entity_type: str = field(String)
    entity_name: str | None = field(String, nullable_since=0)


class ClientQuotaRecord(DeclaredRecord, api_key=14, versions=(0, 0), flexible_since=0):
    """One quota of an entity; `remove` deletes it."""

    entity: list[QuotaEntityPart] = field(Array(QuotaEntityPart))
    key: str = field(String)
    value: float = field(Float64)
    remove: bool = field(Bool)


class ProducerIdsRecord(DeclaredRecord, api_key=15, versions=(0, 0), flexible_since=0):
    """A broker got the block of producer ids that ends before `next_producer_id`."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)
    next_producer_id: int = field(Int64)


class BrokerRegistrationChangeRecord(DeclaredRecord, api_key=17, versions=(0, 3), flexible_since=0):
    """Changes of a registration. `fenced`: -1 unfenced, 0 no change, 1 fenced."""

    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64)
    fenced: int = field(Int8, tag=0)
    in_controlled_shutdown: int = field(Int8, since=1, tag=1)
    log_dirs: list[bytes] = field(Array(Uuid), since=2, tag=2)
    cordoned_log_dirs: list[bytes] | None = field(Array(Uuid), since=3, nullable_since=3, default=None, tag=3)


class AccessControlEntryRecord(DeclaredRecord, api_key=18, versions=(0, 0), flexible_since=0):
    """An ACL was made. The numbers are those of `protocol/acls.py`."""

    id: bytes = field(Uuid)
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    pattern_type: int = field(Int8)
    principal: str = field(String)
    host: str = field(String)
    operation: int = field(Int8)
    permission_type: int = field(Int8)


class RemoveAccessControlEntryRecord(DeclaredRecord, api_key=19, versions=(0, 0), flexible_since=0):
    """An ACL was deleted."""

    id: bytes = field(Uuid)


class NoOpRecord(DeclaredRecord, api_key=20, versions=(0, 0), flexible_since=0):
    """Takes an offset and changes nothing: shows followers that the leader is alive."""


class RemoveUserScramCredentialRecord(DeclaredRecord, api_key=22, versions=(0, 0), flexible_since=0):
    """The SCRAM credential of a user for one mechanism was deleted."""

    name: str = field(String)
    mechanism: int = field(Int8)


class BeginTransactionRecord(DeclaredRecord, api_key=23, versions=(0, 0), flexible_since=0):
    """Begins a metadata transaction: the following records count only after its end."""

    name: str | None = field(String, nullable_since=0, default=None, tag=0)


class EndTransactionRecord(DeclaredRecord, api_key=24, versions=(0, 0), flexible_since=0):
    """Ends a metadata transaction: its records count."""


class AbortTransactionRecord(DeclaredRecord, api_key=25, versions=(0, 0), flexible_since=0):
    """Aborts a metadata transaction: its records do not count."""

    reason: str | None = field(String, nullable_since=0, default=None, tag=0)


class RemoveDelegationTokenRecord(DeclaredRecord, api_key=26, versions=(0, 0), flexible_since=0):
    """A delegation token was deleted or has expired."""

    token_id: str = field(String)


class RegisterControllerRecord(DeclaredRecord, api_key=27, versions=(0, 0), flexible_since=0):
    """A controller process has started."""

    controller_id: int = field(Int32)
    incarnation_id: bytes = field(Uuid)
    zk_migration_ready: bool = field(Bool)
    end_points: list[RegisteredEndpoint] = field(Array(RegisteredEndpoint))
    features: list[RegisteredFeature] = field(Array(RegisteredFeature))


class ClearElrRecord(DeclaredRecord, api_key=28, versions=(0, 0), flexible_since=0):
    """Clears the eligible leaders of a topic; of all topics if the name is empty."""

    topic_name: str = field(String)


class ForeignRecord(NamedTuple):
    """A record of an unserved type or version; the image keeps it and snapshots write it again, so that Kafka finds it unchanged."""

    api_key: int
    version: int
    value: bytes  # the whole value with its frame, as it was read


MetadataRecord = DeclaredRecord | ForeignRecord
_TYPES: Final = {cls.API_KEY: cls for cls in DeclaredRecord.__subclasses__()}


def _version_of(rec: MetadataRecord) -> int:
    """The newest version; for a registration change the oldest that has its fields, as Kafka does."""
    if isinstance(rec, BrokerRegistrationChangeRecord):
        if rec.cordoned_log_dirs is not None:
            return 3
        return 2 if rec.log_dirs else 1 if rec.in_controlled_shutdown else 0
    return 0 if isinstance(rec, ForeignRecord) else rec.VERSIONS[1]


def encode_record(rec: MetadataRecord) -> bytes:
    """Frame and body. Raises LocalProtocolError for a value out of the wire format's range."""
    if isinstance(rec, ForeignRecord):
        return rec.value
    version = _version_of(rec)
    frame = encode_uvarint(FRAME_VERSION) + encode_uvarint(rec.API_KEY) + encode_uvarint(version)
    return frame + encode(rec, version)


def decode_record(value: Buffer) -> MetadataRecord:
    """Raises RemoteProtocolError for an unknown frame version, or a malformed body of a declared type and version."""
    if len(value) >= 3 and value[0] == FRAME_VERSION and value[1] < 128 and value[2] < 128:  # nearly every record
        api_key, version, at = value[1], value[2], 3
    else:
        frame_version, at = read_uvarint(value, 0)
        if frame_version != FRAME_VERSION:
            raise RemoteProtocolError(
                f"metadata record with frame version {frame_version}, only {FRAME_VERSION} is known"
            )
        api_key, at = read_uvarint(value, at)
        version, at = read_uvarint(value, at)
    cls = _TYPES.get(api_key)
    if cls is None or not cls.VERSIONS[0] <= version <= cls.VERSIONS[1]:
        return ForeignRecord(api_key, version, bytes(value))
    return codec(cls, version).decode(value, at)[0]
