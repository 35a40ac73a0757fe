"""Producer settings: one frozen, validated value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from barnabas.client.errors import IllegalState, RecordTooLarge
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.client.types import Acks, CompressionType, TransactionVersion
from barnabas.protocol.compression import Compression

Serializer = Callable[[Any], bytes | None]

_REQUIRED_ACKS: dict[int | str, int] = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
_IN_FLIGHT_MAX = 5  # a broker remembers five batches of a producer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ConnectionConfig):
    """Keyword arguments of `Producer`, documented there. Raises IllegalState for invalid or conflicting settings."""

    client_id: str = "barnabas-producer"
    acks: Acks = "all"
    enable_idempotence: bool | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    compression_type: CompressionType | None = None
    max_batch_size: int = 65_536
    linger_ms: int = 0
    max_request_size: int = 1_048_576
    max_in_flight_requests_per_connection: int = 5
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    buffer_memory: int = 32 * 1024 * 1024
    transaction_version: TransactionVersion | None = None
    two_phase_commit: bool = False
    keep_prepared: bool = False

    def __post_init__(self) -> None:
        ConnectionConfig.__post_init__(self)  # super() does not find the class created by `slots`
        if type(self.acks) not in (int, str) or self.acks not in _REQUIRED_ACKS:
            raise IllegalState(f"acks={self.acks!r} is none of 'all', -1, 0, 1")
        if self.idempotent and self.required_acks != -1:
            raise IllegalState("enable_idempotence needs acks='all'")
        if self.transactional_id is not None and not self.idempotent:
            raise IllegalState("a transactional_id needs enable_idempotence and acks='all'")
        if not 1 <= self.max_in_flight_requests_per_connection <= _IN_FLIGHT_MAX:
            raise IllegalState(
                f"max_in_flight_requests_per_connection must be 1 to {_IN_FLIGHT_MAX}: a broker remembers five batches"
            )
        if self.transaction_version not in (None, 1, 2):
            raise IllegalState(f"transaction_version={self.transaction_version!r} is none of None, 1, 2")
        if self.two_phase_commit and self.transactional_id is None:
            raise IllegalState("two_phase_commit needs a transactional_id")
        if self.two_phase_commit and self.transaction_version == 1:
            raise IllegalState("two_phase_commit needs transaction_version 2: version 1 cannot identify a transaction")
        if self.keep_prepared and not self.two_phase_commit:
            raise IllegalState("keep_prepared needs two_phase_commit: without it a kept transaction would time out")
        _codec(self.compression_type)

    @property
    def required_acks(self) -> int:
        """`acks` as in the Produce request: −1 (all), 0 or 1."""
        return _REQUIRED_ACKS[self.acks]

    @property
    def idempotent(self) -> bool:
        """`enable_idempotence`, by default whether acks is "all"."""
        return self.required_acks == -1 if self.enable_idempotence is None else self.enable_idempotence

    @property
    def codec(self) -> int:
        """Compression codec in batch headers."""
        return _codec(self.compression_type)

    def too_large(self, what: str, size: int, topic: str) -> RecordTooLarge:
        """The error for `size` bytes above `max_request_size`."""
        text = f"a {what} of {size} bytes exceeds max_request_size={self.max_request_size}"
        return RecordTooLarge(text, topic=topic)


def _codec(name: str | None) -> int:
    if name is None or name == "none":
        return Compression.NONE
    try:
        return Compression[name.upper()]
    except (KeyError, AttributeError):
        raise IllegalState(f"compression_type={name!r} is none of None, 'gzip', 'snappy', 'lz4', 'zstd'") from None
