"""Client telemetry (KIP-714): subscriptions, validation of pushes and the latest value of each series. Checks, times and errors are those of
Kafka's ClientMetricsManager.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.broker.config.client_metrics_config import (
    ALL_METRICS,
    INTERVAL_MS_DEFAULT,
    MetricsSubscription,
    subscription,
)
from barnabas.broker.telemetry.otlp import Point, read_metrics
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import DecompressedTooLarge, decompress
from barnabas.storage.checkpoints import encode_uuid
from barnabas.work import Steps

ACCEPTED_COMPRESSION: Final = (4, 3, 1, 2)  # zstd, lz4, gzip, snappy: the best first
COMPRESSION_MAX: Final = 4
INSTANCES_MAX: Final = 16_384
SILENT_MS_MIN: Final = 60_000
SERIES_MAX: Final = 50_000  # of all clients: about 20 MB
SERIES_A_CLIENT_MAX: Final = 2_000
SUBSCRIPTIONS_PER_UNIT: Final = 4
RESERVED_IDS: Final = (bytes(16), bytes(15) + b"\x01")  # Uuid.RESERVED

_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_PREFIX: Final = "org.apache.kafka."


class PushingClient(NamedTuple):
    """What a subscription may match, in the order of client_metrics_config.MATCHED without the instance id."""

    client_id: str
    software_name: str
    software_version: str
    source_address: str
    source_port: str


class ClientSubscription(NamedTuple):
    """`metrics` are prefixes of names; empty for nothing, ["*"] for all."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


class PushedSeries(NamedTuple):
    """One series of one client, named and labelled as on /metrics."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    is_counter: bool


class _Instance:
    __slots__ = (
        "error",
        "last_get_ms",
        "last_push_ms",
        "properties",
        "seen_ms",
        "subscribed",
        "terminating",
        "values",
        "version",
    )

    def __init__(self, properties: PushingClient, subscribed: ClientSubscription, version: int, now_ms: int) -> None:
        self.properties = properties
        self.subscribed = subscribed
        self.version = version  # of the settings that `subscribed` follows
        self.last_get_ms: int | None = None
        self.last_push_ms: int | None = None
        self.seen_ms = now_ms
        self.terminating = False
        self.error = ErrorCode.NONE
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], PushedSeries] = {}

    @property
    def silent_ms_max(self) -> int:
        return max(SILENT_MS_MIN, 3 * self.subscribed.interval_ms)

    def may_get(self, now_ms: int) -> bool:
        """Whether an interval has passed since the last request."""
        last = [each for each in (self.last_get_ms, self.last_push_ms) if each is not None]
        if last and now_ms - max(last) < self.subscribed.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Whether an interval has passed; the first push after a new subscription need not wait."""
        got, pushed = self.last_get_ms, self.last_push_ms
        renewed = got is not None and (pushed is None or got > pushed)
        if not renewed and pushed is not None and now_ms - pushed < self.subscribed.interval_ms:
            return False
        self.last_push_ms = now_ms
        return True


class ClientTelemetry:
    """Known clients: at most INSTANCES_MAX, evicted least recently seen first; silent for three intervals (at least a minute) they expire.

    `bytes_max`: of a push, compressed and decompressed (telemetry.max.bytes).
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.throttled = self.unknown_subscriptions = self.pushes = self.refused_pushes = 0  # since the start
        self._subscriptions: dict[str, MetricsSubscription] = {}
        self._version = 0
        self._instances: OrderedDict[bytes, _Instance] = OrderedDict()  # the longest silent first
        self._series = 0
        self._of_connection: dict[int, bytes] = {}  # the last client of each open connection

    def __len__(self) -> int:
        return len(self._instances)

    def connected(self, connection: int, instance_id: bytes) -> bool:
        """Returns whether it is the connection's first request."""
        first = connection not in self._of_connection
        self._of_connection[connection] = instance_id
        return first

    def disconnected(self, connection: int) -> None:
        """Removes the connection's client and its series."""
        instance_id = self._of_connection.pop(connection, None)
        if instance_id is not None:
            self._forget(instance_id)

    def configure(self, name: str, settings: Mapping[str, str]) -> None:
        """Replaces a client-metrics resource; empty settings delete it."""
        if settings:
            try:
                self._subscriptions[name] = subscription(settings)
            except BrokerError:  # written by a version with other bounds
                self._subscriptions.pop(name, None)
        elif self._subscriptions.pop(name, None) is None:
            return
        self._version += 1

    def subscribe(self, instance_id: bytes, client: PushingClient, now_ms: int) -> Steps[ClientSubscription]:
        """Raises BrokerError(THROTTLING_QUOTA_EXCEEDED): another request within the interval, and nothing has changed."""
        instance = yield from self._instance(instance_id, client, now_ms)
        renews = instance.error in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if not instance.may_get(now_ms) and not renews:
            self.throttled += 1
            raise BrokerError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance.error = ErrorCode.NONE
        return instance.subscribed

    def push(
        self,
        instance_id: bytes,
        client: PushingClient,
        now_ms: int,
        *,
        subscription_id: int,
        terminating: bool,
        compression: int,
        metrics: bytes,
    ) -> Steps[None]:
        """Raises BrokerError: INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE,
        TELEMETRY_TOO_LARGE or INVALID_RECORD.
        """
        if instance_id in RESERVED_IDS:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        instance = yield from self._instance(instance_id, client, now_ms)
        try:
            self._check(instance, now_ms, subscription_id, terminating, compression, len(metrics))
            if metrics:
                yield from self._take(instance_id, instance, compression, metrics)
            instance.error = ErrorCode.NONE
            self.pushes += 1
        except BrokerError as error:
            instance.error = error.code
            self.refused_pushes += 1
            raise
        finally:
            instance.terminating = terminating

    def _check(
        self,
        instance: _Instance,
        now_ms: int,
        subscription_id: int,
        terminating: bool,
        compression: int,
        size_bytes: int,
    ) -> None:
        if instance.terminating:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        if not instance.may_push(now_ms) and not terminating:
            self.throttled += 1
            raise BrokerError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != instance.subscribed.subscription_id:
            self.unknown_subscriptions += 1
            raise BrokerError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if not 0 <= compression <= COMPRESSION_MAX:
            raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if size_bytes > self.bytes_max:
            raise BrokerError(ErrorCode.TELEMETRY_TOO_LARGE)

    def _take(self, instance_id: bytes, instance: _Instance, compression: int, metrics: bytes) -> Steps[None]:
        try:
            points = yield from read_metrics(decompress(compression, metrics, self.bytes_max))
        except DecompressedTooLarge:
            raise BrokerError(ErrorCode.TELEMETRY_TOO_LARGE) from None
        except RemoteProtocolError:
            raise BrokerError(ErrorCode.INVALID_RECORD) from None
        labels = _labels(instance_id, instance.properties)
        for number, point in enumerate(points):
            known = self._instances.get(instance_id)
            if known is None or known.values is not instance.values:
                return  # forgotten between two slices
            self._keep(instance, labels, point)
            if number % 16 == 15:
                yield 4

    def _keep(self, instance: _Instance, labels: tuple[tuple[str, str], ...], point: Point) -> None:
        key = point.name, point.attributes
        known = instance.values.get(key)
        if known is None:
            if self._series >= SERIES_MAX or len(instance.values) >= SERIES_A_CLIENT_MAX:
                return
            self._series += 1
            own = tuple((_label_name(name), value) for name, value in point.attributes)
            taken = {name for name, _ in labels}
            known = PushedSeries(
                _metric_name(point),
                (*labels, *(each for each in dict(own).items() if each[0] not in taken)),
                0.0,
                point.is_sum,
            )
        value = known.value + point.value if point.is_delta else point.value
        instance.values[key] = known._replace(value=value)

    def series(self) -> Iterator[PushedSeries]:
        """The latest value of every series; the caller may pause in between."""
        for instance in list(self._instances.values()):
            yield from list(instance.values.values())

    def forget_silent(self, now_ms: int) -> None:
        """Expires silent clients, a few at a time."""
        for _ in range(16):
            oldest = next(iter(self._instances.items()), None)
            if oldest is None or now_ms - oldest[1].seen_ms < oldest[1].silent_ms_max:
                return
            self._forget(oldest[0])

    def _forget(self, instance_id: bytes) -> None:
        instance = self._instances.pop(instance_id, None)
        if instance is not None:
            self._series -= len(instance.values)

    def _instance(self, instance_id: bytes, client: PushingClient, now_ms: int) -> Steps[_Instance]:
        """Creates the client, or renews it after a change of settings."""
        self.forget_silent(now_ms)
        instance = self._instances.get(instance_id)
        if instance is None or instance.version < self._version:
            version = self._version
            subscribed = yield from self._subscribed(instance_id, client if instance is None else instance.properties)
            instance = self._instances.get(
                instance_id
            )  # another request may have made or forgotten it between two slices
            if instance is None or instance.version < version:
                renewed = _Instance(client if instance is None else instance.properties, subscribed, version, now_ms)
                if instance is not None:
                    renewed.values = instance.values
                elif len(self._instances) >= INSTANCES_MAX:
                    self._forget(next(iter(self._instances)))
                instance = self._instances[instance_id] = renewed
        instance.seen_ms = now_ms
        self._instances.move_to_end(instance_id)
        return instance

    def _subscribed(self, instance_id: bytes, client: PushingClient) -> Steps[ClientSubscription]:
        texts = dict(
            zip(
                (
                    "client_id",
                    "client_software_name",
                    "client_software_version",
                    "client_source_address",
                    "client_source_port",
                ),
                client,
                strict=True,
            ),
            client_instance_id=encode_uuid(instance_id),
        )
        metrics: dict[str, None] = {}
        interval_ms = INTERVAL_MS_DEFAULT
        for number, each in enumerate(list(self._subscriptions.values())):
            if number % SUBSCRIPTIONS_PER_UNIT == 0:
                yield 2
            if all(pattern.fullmatch(texts[name]) for name, pattern in each.match.items()):
                metrics.update(dict.fromkeys(each.metrics))
                interval_ms = min(interval_ms, each.interval_ms)
        names: Iterable[str] = (ALL_METRICS,) if ALL_METRICS in metrics else sorted(metrics)
        chosen = tuple(names)
        mixed = crc32c(f"{chosen}{interval_ms}".encode()) ^ crc32c(instance_id)
        return ClientSubscription(mixed - 2**32 if mixed >= 2**31 else mixed, chosen, interval_ms)


def _labels(instance_id: bytes, client: PushingClient) -> tuple[tuple[str, str], ...]:
    return (
        ("client_instance_id", encode_uuid(instance_id)),
        ("client_id", client.client_id),
        ("client_software_name", client.software_name),
        ("client_software_version", client.software_version),
    )


def _label_name(key: str) -> str:
    """Prometheus would refuse all series for a leading digit or `__`, which it reserves."""
    name = _NOT_IN_A_NAME.sub("_", key)
    return "attribute_" + name if name[0].isdigit() or name.startswith("__") else name


def _metric_name(point: Point) -> str:
    """kafka_client_ and the name without org.apache.kafka; counters end in _total."""
    name = "kafka_client_" + _NOT_IN_A_NAME.sub("_", point.name.removeprefix(_PREFIX))
    return name if not point.is_sum or name.endswith(("_total", "_count", "_sum")) else name + "_total"
