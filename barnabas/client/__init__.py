"""Asyncio client: Producer, Consumer, Admin, without threads, with I/O only through ports.

All public names are here; large parts are imported when first used. Layers, from high to low: `exactly_once`; `admin`,
`producer` and `consumer`, which do not import each other; `group`; `net`; `committable`;
`loop_affinity`; `errors`; `types`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnreachable,
    BufferExhausted,
    ClientClosed,
    CommitFailed,
    CorruptRecords,
    DeliveryTimedOut,
    IllegalState,
    InvalidTopic,
    KafkaError,
    LogTruncated,
    NoOffsetForPartition,
    NotKafka,
    OffsetOutOfRange,
    PartlyWritten,
    ProducerFailed,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    ResponseError,
    SendFailed,
    SerializationFailed,
    TopicAlreadyExists,
    TransactionFailed,
    UnknownGroup,
    UnknownTopicOrPartition,
    UnsupportedByBroker,
)
from barnabas.client.exactly_once import CopyProgress, NewMessage, exactly_once
from barnabas.client.types import (
    Acks,
    AssignorName,
    AutoOffsetReset,
    CompressionType,
    ConsumerGroupMetadata,
    GroupProtocol,
    Headers,
    HeadersToSend,
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PreparedTransaction,
    RawRecord,
    Record,
    RecordMetadata,
    TopicPartition,
    TransactionVersion,
    ValueRun,
)
from barnabas.errors import ErrorCode
from barnabas.protocol.records import EncodedRecords

if TYPE_CHECKING:
    from barnabas.client.admin import Admin, ClusterDescription, NewTopic
    from barnabas.client.consumer import Consumer, ConsumerConfig
    from barnabas.client.group import RebalanceListener
    from barnabas.client.net.core.connection_config import ConnectionConfig
    from barnabas.client.net.security_properties import oauth_tokens
    from barnabas.client.producer import Producer, ProducerConfig, Transaction

__all__ = [
    "Acks",
    "Admin",
    "AssignorName",
    "AuthenticationFailed",
    "AuthorizationFailed",
    "AutoOffsetReset",
    "BrokerUnreachable",
    "BufferExhausted",
    "ClientClosed",
    "ClusterDescription",
    "CommitFailed",
    "CompressionType",
    "ConnectionConfig",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroupMetadata",
    "CopyProgress",
    "CorruptRecords",
    "DeliveryTimedOut",
    "EncodedRecords",
    "ErrorCode",
    "GroupProtocol",
    "Headers",
    "HeadersToSend",
    "IllegalState",
    "InvalidTopic",
    "IsolationLevel",
    "KafkaError",
    "LogTruncated",
    "NewMessage",
    "NewTopic",
    "NoOffsetForPartition",
    "NotKafka",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "PartlyWritten",
    "PreparedTransaction",
    "Producer",
    "ProducerConfig",
    "ProducerFailed",
    "ProducerFenced",
    "RawRecord",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RecordTooLarge",
    "RequestTimedOut",
    "ResponseError",
    "SendFailed",
    "SerializationFailed",
    "TopicAlreadyExists",
    "TopicPartition",
    "Transaction",
    "TransactionFailed",
    "TransactionVersion",
    "UnknownGroup",
    "UnknownTopicOrPartition",
    "UnsupportedByBroker",
    "ValueRun",
    "exactly_once",
    "oauth_tokens",
]

_IMPORTED_ON_USE: Final = {
    "Admin": "barnabas.client.admin",
    "ClusterDescription": "barnabas.client.admin",
    "ConnectionConfig": "barnabas.client.net.core.connection_config",
    "Consumer": "barnabas.client.consumer",
    "ConsumerConfig": "barnabas.client.consumer",
    "NewTopic": "barnabas.client.admin",
    "Producer": "barnabas.client.producer",
    "ProducerConfig": "barnabas.client.producer",
    "RebalanceListener": "barnabas.client.group",
    "Transaction": "barnabas.client.producer",
    "oauth_tokens": "barnabas.client.net.security_properties",
}


def __getattr__(name: str) -> Any:
    place = _IMPORTED_ON_USE.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(place), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
