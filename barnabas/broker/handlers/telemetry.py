"""Handles GetTelemetrySubscriptions (71) and PushTelemetry (72), version 0.

Behaviour: as with Kafka, these APIs are listed in ApiVersions and answered only by a node that exports what clients push, here one with
a metrics listener; others answer UNSUPPORTED_VERSION. A client is known by its instance id, and is forgotten when its connection ends.
Deltas are added up, so that /metrics shows counters since the client's first push.

Deviations: a push has limits on fields, points, names and attributes (telemetry/otlp.py); one beyond them is refused with
INVALID_RECORD, as Kafka's plugin does with a malformed push.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.api.call import Call, Origin, Table
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse
from barnabas.broker.telemetry.clients import ACCEPTED_COMPRESSION, PushingClient
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.telemetry.clients import ClientTelemetry

NO_ID: Final = bytes(16)
LABEL_LENGTH_MAX: Final = 256  # characters of what a client says of itself


def get_telemetry_subscriptions(needs: Needs, call: Call[GetTelemetrySubscriptionsRequest]) -> Work:
    """Returns the client's id, which metrics it shall push, and how often."""
    telemetry = _telemetry(needs)
    asked = call.request.client_instance_id
    instance_id = needs.reactor.rng.uuid() if asked == NO_ID else bytes(asked)
    _follow(telemetry, call.connection, instance_id)
    found = yield from telemetry.subscribe(instance_id, _properties(call), needs.reactor.clock.monotonic_ms())
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=found.subscription_id,
        accepted_compression_types=list(ACCEPTED_COMPRESSION),
        push_interval_ms=found.interval_ms,
        telemetry_max_bytes=telemetry.bytes_max,
        delta_temporality=True,
        requested_metrics=list(found.metrics),
    )


def push_telemetry(needs: Needs, call: Call[PushTelemetryRequest]) -> Work:
    """Keeps the metrics of a client."""
    telemetry = _telemetry(needs)
    request = call.request
    instance_id = bytes(request.client_instance_id)
    _follow(telemetry, call.connection, instance_id)
    yield from telemetry.push(
        instance_id,
        _properties(call),
        needs.reactor.clock.monotonic_ms(),
        subscription_id=request.subscription_id,
        terminating=request.terminating,
        compression=request.compression_type,
        metrics=bytes(request.metrics),
    )
    return PushTelemetryResponse()


def _telemetry(needs: Needs) -> ClientTelemetry:
    if needs.telemetry is None:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
    return needs.telemetry


def _follow(telemetry: ClientTelemetry, connection: Origin, instance_id: bytes) -> None:
    """Forgets the client when its connection ends."""
    number = connection.number
    if telemetry.connected(number, instance_id):
        connection.on_close(lambda: telemetry.disconnected(number))


def _properties(call: Call[GetTelemetrySubscriptionsRequest] | Call[PushTelemetryRequest]) -> PushingClient:
    name, version = call.connection.software
    return PushingClient(
        (call.client_id or "")[:LABEL_LENGTH_MAX],
        name[:LABEL_LENGTH_MAX],
        version[:LABEL_LENGTH_MAX],
        call.client_host,
        str(call.connection.client_port),
    )


HANDLERS: Final[Table] = {
    GetTelemetrySubscriptionsRequest: (get_telemetry_subscriptions, refuse),
    PushTelemetryRequest: (push_telemetry, refuse),
}
