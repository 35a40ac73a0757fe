"""Settings of the group coordinator for its cores; times in ms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`group.*` and `offset*` of the broker, for all groups."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    size_max: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`group.consumer.*` of one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # names that members may ask for; the first one is the default
    upgrades: bool = True  # may become a consumer group while it has members (`group.consumer.migration.policy`)
    downgrades: bool = True  # may become a classic group while it has members
