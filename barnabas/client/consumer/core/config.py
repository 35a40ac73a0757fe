"""Consumer settings: one frozen, validated value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from barnabas.client.consumer.core.decoding import Deserializer
from barnabas.client.errors import IllegalState
from barnabas.client.group.core.assignors import check_strategies
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.client.types import AssignorName, AutoOffsetReset, GroupProtocol, IsolationLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ConnectionConfig):
    """Keyword arguments of `Consumer`, documented there. Raises IllegalState for invalid or conflicting settings."""

    client_id: str = "barnabas-consumer"
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: GroupProtocol = "classic"
    group_remote_assignor: str | None = None
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    max_poll_records: int | None = None
    auto_offset_reset: AutoOffsetReset = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: IsolationLevel = "read_uncommitted"
    check_crcs: bool = True
    partition_assignment_strategy: Sequence[AssignorName] = ("range", "roundrobin")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    client_rack: str = ""
    raw_records: bool = False
    value_runs: bool = False

    def __post_init__(self) -> None:
        ConnectionConfig.__post_init__(self)  # super() does not find the class created by `slots`
        for name, choices in (
            ("isolation_level", get_args(IsolationLevel)),
            ("auto_offset_reset", get_args(AutoOffsetReset)),
            ("group_protocol", get_args(GroupProtocol)),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise IllegalState(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")
        if self.group_remote_assignor is not None and self.group_protocol == "classic":
            raise IllegalState(
                "group_remote_assignor needs group_protocol='consumer' or 'auto'; with 'classic' set partition_assignment_strategy"
            )
        if self.value_runs and (self.raw_records or self.key_deserializer or self.value_deserializer):
            raise IllegalState("value_runs excludes raw_records and deserializers")
        if self.group_id is not None and self.group_protocol != "consumer":
            check_strategies(self.partition_assignment_strategy)

    @property
    def commits_automatically(self) -> bool:
        """Whether polls commit; never without a group."""
        return self.enable_auto_commit and self.group_id is not None

    @property
    def read_committed(self) -> bool:
        """Whether to skip records of open and aborted transactions (KIP-98)."""
        return self.isolation_level == "read_committed"
