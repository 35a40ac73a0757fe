"""Metrics that clients push to brokers (KIP-714): GetTelemetrySubscriptions 0, PushTelemetry 0."""

from __future__ import annotations

from barnabas.protocol.schema import Message, field
from barnabas.protocol.wire import Array, Bool, Bytes, Int8, Int16, Int32, String, Uuid


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions=(0, 0), flexible_since=0):
    """Requests the metrics subscription of a client."""

    client_instance_id: bytes = field(Uuid)  # zero in the first request


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions=(0, 0), flexible_since=0):
    """Metrics to push, and the interval."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    client_instance_id: bytes = field(Uuid)
    subscription_id: int = field(Int32)
    accepted_compression_types: list[int] = field(Array(Int8))
    push_interval_ms: int = field(Int32)
    telemetry_max_bytes: int = field(Int32)
    delta_temporality: bool = field(Bool)
    requested_metrics: list[str] = field(Array(String))  # prefixes of names; "*" for all


class PushTelemetryRequest(Message, api_key=72, versions=(0, 0), flexible_since=0):
    """The metrics of a client: OpenTelemetry's MetricsData v1 in protobuf, compressed."""

    client_instance_id: bytes = field(Uuid)
    subscription_id: int = field(Int32)
    terminating: bool = field(Bool)
    compression_type: int = field(Int8)
    metrics: bytes = field(Bytes)


class PushTelemetryResponse(Message, api_key=72, versions=(0, 0), flexible_since=0):
    """The result of a push."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
