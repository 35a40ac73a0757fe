"""Huge requests about client metrics: ListConfigResources, PushTelemetry. The broker serves metrics, so that it takes pushes."""

from __future__ import annotations

import gzip
from typing import Final

from barnabas.broker.telemetry.clients import ClientTelemetry, PushingClient
from barnabas.work import finished
from tests.support.processes.huge.request import ELEMENTS, LARGE_BYTES, Huge
from tests.support.requests import Fields

EMPTY_METRIC: Final = b"\x12\x00"  # an empty message in ScopeMetrics.metrics
NESTED: Final = 40_000  # below the most fields of a push
PUSH_BYTES_MAX: Final = 1_048_576  # telemetry.max.bytes
NOBODY: Final = PushingClient("", "", "", "", "")


def nested(body: bytes, number: int = 1) -> bytes:
    """A protobuf field whose value is a message."""
    size = bytearray()
    left = len(body)
    while left > 127:
        size.append(left & 127 | 128)
        left >>= 7
    return bytes([number << 3 | 2, *size, left]) + body


def push(number: int, metrics: bytes, compression: int = 0) -> Fields:
    """A push that the broker reads: it has the subscription of a broker without client-metrics resources."""
    instance_id = number.to_bytes(16, "big")
    subscribed = finished(ClientTelemetry(1).subscribe(instance_id, NOBODY, 0))
    identity = {"client_instance_id": instance_id, "subscription_id": subscribed.subscription_id}
    return {**identity, "compression_type": compression, "metrics": metrics}


def too_many_fields() -> Fields:
    body = EMPTY_METRIC * (PUSH_BYTES_MAX // len(EMPTY_METRIC) - 20)
    return push(102, gzip.compress(nested(nested(body, 2))), compression=1)


CLIENT_METRICS: Final = (
    Huge(
        "ListConfigResources: every type, often",
        1,
        {0},
        lambda w: {"resource_types": [2, 4, 8, 16, 32] * (ELEMENTS // 5)},
    ),
    Huge("ListConfigResources: all", 1, {0}, lambda w: {}),
    Huge("PushTelemetry: many fields", 0, {0}, lambda w: push(101, nested(nested(EMPTY_METRIC * NESTED, 2)))),
    Huge("PushTelemetry: too many fields", 0, {87}, lambda w: too_many_fields()),
    Huge("PushTelemetry: too large", 0, {118}, lambda w: push(104, bytes(LARGE_BYTES))),
    # 50 kB that decompress to 50 MB
    Huge(
        "PushTelemetry: too large when decompressed",
        0,
        {118},
        lambda w: push(103, gzip.compress(bytes(50_000_000)), compression=1),
    ),
)
