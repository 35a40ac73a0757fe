"""Telemetry of clients: subscriptions, the checks of a push in Kafka's order, the values that are kept."""

from __future__ import annotations

import gzip
import re

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from barnabas.broker.telemetry import clients
from barnabas.broker.telemetry.clients import ClientSubscription, ClientTelemetry, PushingClient
from barnabas.errors import BrokerError, ErrorCode
from barnabas.work import finished
from tests.support.broker.pushes import gauge_and_sum
from tests.support.broker.pushes import number as put_number

ONE, TWO = b"1" * 16, b"2" * 16
JAVA = PushingClient("app", "apache-kafka-java", "4.3.1", "127.0.0.1", "50000")
OTHER = PushingClient("app2", "librdkafka", "2.12", "127.0.0.2", "50001")
ALL = {"metrics": "*", "interval.ms": "1000"}


@pytest.fixture
def telemetry() -> ClientTelemetry:
    found = ClientTelemetry(10_000)
    found.configure("all", ALL)
    return found


def subscribe(
    telemetry: ClientTelemetry, now_ms: int, client: bytes = ONE, who: PushingClient = JAVA
) -> ClientSubscription:
    return finished(telemetry.subscribe(client, who, now_ms))


def push(
    telemetry: ClientTelemetry,
    now_ms: int,
    subscription_id: int,
    metrics: bytes = b"",
    *,
    client: bytes = ONE,
    compression: int = 0,
    terminating: bool = False,
) -> None:
    finished(
        telemetry.push(
            client,
            JAVA,
            now_ms,
            subscription_id=subscription_id,
            terminating=terminating,
            compression=compression,
            metrics=metrics,
        )
    )


def refused(code: ErrorCode) -> pytest.RaisesExc[BrokerError]:
    return pytest.raises(BrokerError, check=lambda error: error.code == code)


def test_subscriptions_that_match_are_joined() -> None:
    telemetry = ClientTelemetry(1)
    assert subscribe(telemetry, 0)[1:] == ((), 300_000)
    telemetry.configure(
        "java", {"metrics": "b,a", "match": "client_software_name=apache.*,client_id=app", "interval.ms": "5000"}
    )
    telemetry.configure("one", {"metrics": "c", "match": "client_id=ap+", "interval.ms": "4000"})
    telemetry.configure("port", {"metrics": "d", "match": "client_source_port=1"})
    assert subscribe(telemetry, 1)[1:] == (("a", "b", "c"), 4000)
    assert subscribe(telemetry, 1, TWO, OTHER)[1:] == ((), 300_000)
    telemetry.configure("one", {"metrics": "c,*", "match": "client_instance_id=MTEx.*"})
    assert subscribe(telemetry, 2)[1:] == (("*",), 5000)
    telemetry.configure("one", {})
    assert subscribe(telemetry, 3)[1:] == (("a", "b"), 5000)


def test_the_id_of_a_subscription_changes_with_what_it_says_and_differs_between_clients(
    telemetry: ClientTelemetry,
) -> None:
    first = subscribe(telemetry, 0).subscription_id
    assert subscribe(telemetry, 0, TWO).subscription_id != first
    telemetry.configure("all", {"metrics": "*", "interval.ms": "2000"})
    second = subscribe(telemetry, 1).subscription_id
    assert second != first
    telemetry.configure("all", ALL)
    assert subscribe(telemetry, 2).subscription_id == first
    assert -(2**31) <= first < 2**31


def test_a_client_asks_and_pushes_once_an_interval(telemetry: ClientTelemetry) -> None:
    found = subscribe(telemetry, 0)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        subscribe(telemetry, 999)
    push(telemetry, 1000, found.subscription_id)  # the first push after a subscription need not wait
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        push(telemetry, 1999, found.subscription_id)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        subscribe(telemetry, 1999)
    push(telemetry, 2000, found.subscription_id)
    push(telemetry, 2001, found.subscription_id, terminating=True)
    with refused(ErrorCode.INVALID_REQUEST):
        push(telemetry, 9000, found.subscription_id)
    assert (telemetry.throttled, telemetry.pushes) == (3, 3)


def test_a_client_with_a_former_subscription_asks_at_once(telemetry: ClientTelemetry) -> None:
    former = subscribe(telemetry, 0)
    telemetry.configure("all", {"metrics": "a", "interval.ms": "1000"})
    with refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
        push(telemetry, 10, former.subscription_id)
    assert telemetry.unknown_subscriptions == 1
    found = subscribe(telemetry, 20)
    assert found.metrics == ("a",)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):  # it has pushed within its interval
        push(telemetry, 30, found.subscription_id)
    push(telemetry, 1010, found.subscription_id)


@pytest.mark.parametrize(
    ("metrics", "compression", "code"),
    [
        (b"x", 5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (b"x", -1, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (bytes(10_001), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (gzip.compress(bytes(10_001), mtime=0), 1, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"\x0a\x7f", 0, ErrorCode.INVALID_RECORD),
        (b"no gzip", 1, ErrorCode.INVALID_RECORD),
    ],
)
def test_a_wrong_push_is_refused_and_keeps_nothing(
    telemetry: ClientTelemetry, metrics: bytes, compression: int, code: ErrorCode
) -> None:
    found = subscribe(telemetry, 0)
    with refused(code):
        push(telemetry, 1, found.subscription_id, metrics, compression=compression)
    assert list(telemetry.series()) == []
    assert telemetry.refused_pushes == 1


@pytest.mark.parametrize("reserved", [bytes(16), bytes(15) + b"\x01"])
def test_a_reserved_id_cannot_push(telemetry: ClientTelemetry, reserved: bytes) -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        push(telemetry, 0, 0, client=reserved)


def test_deltas_are_added_and_other_values_replaced(telemetry: ClientTelemetry) -> None:
    found = subscribe(telemetry, 0)
    push(telemetry, 0, found.subscription_id, gauge_and_sum(5, 2, topic="t"))
    push(telemetry, 1000, found.subscription_id, gauge_and_sum(4, 3, topic="t"))
    values = {each.name: (each.value, dict(each.labels)) for each in telemetry.series()}
    labels = {
        "client_instance_id": "MTExMTExMTExMTExMTExMQ",
        "client_id": "app",
        "client_software_name": "apache-kafka-java",
        "client_software_version": "4.3.1",
        "topic": "t",
    }
    assert values == {
        "kafka_client_producer_queue_size": (4, labels),
        "kafka_client_producer_sent_total": (5, labels),
    }


def test_a_client_cannot_replace_the_labels_that_name_it(telemetry: ClientTelemetry) -> None:
    found = subscribe(telemetry, 0)
    push(telemetry, 0, found.subscription_id, gauge_and_sum(1, 1, client_id="another", **{"a-b": "x"}))
    for each in telemetry.series():
        assert dict(each.labels)["client_id"] == "app"
        assert dict(each.labels)["a_b"] == "x"


@pytest.mark.parametrize("key", ["1", "__name__", "é", "-"])
def test_no_attribute_of_a_client_can_spoil_a_scrape(telemetry: ClientTelemetry, key: str) -> None:
    """Prometheus refuses a whole scrape for one label that it cannot read."""
    found = subscribe(telemetry, 0)
    push(telemetry, 0, found.subscription_id, gauge_and_sum(1, 1, **{key: "x"}))
    for each in telemetry.series():
        assert all(re.fullmatch("(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name) for name, _ in each.labels)
        assert "x" in dict(each.labels).values()


def test_clients_that_are_forgotten_within_a_push_leave_no_series_in_the_sum(
    telemetry: ClientTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = subscribe(telemetry, 0)
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = "a"
    for at in range(40):
        put_number(metric.gauge.data_points.add(), 1, {"at": at})
    steps = telemetry.push(
        ONE,
        JAVA,
        1,
        subscription_id=found.subscription_id,
        terminating=False,
        compression=0,
        metrics=bytes(data.SerializeToString()),
    )
    telemetry.connected(7, ONE)
    while not list(telemetry.series()):
        next(steps)
    telemetry.disconnected(7)  # an older connection of the client ends
    finished(steps)
    monkeypatch.setattr(clients, "SERIES_MAX", 2)
    push(telemetry, 2, subscribe(telemetry, 2, TWO).subscription_id, gauge_and_sum(1, 1), client=TWO)
    assert len(list(telemetry.series())) == 2


def test_two_requests_of_a_new_client_make_it_once(telemetry: ClientTelemetry) -> None:
    slow = telemetry.subscribe(ONE, JAVA, 0)
    next(slow)
    push(telemetry, 0, subscribe(telemetry, 0).subscription_id, gauge_and_sum(1, 1))
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        finished(slow)
    assert len(list(telemetry.series())) == 2


def test_silent_and_disconnected_clients_are_forgotten_with_their_series(telemetry: ClientTelemetry) -> None:
    for client in (ONE, TWO):
        push(telemetry, 0, subscribe(telemetry, 0, client).subscription_id, gauge_and_sum(1, 1), client=client)
    telemetry.forget_silent(59_999)
    assert len(telemetry) == 2
    subscribe(telemetry, 59_999, TWO)
    telemetry.forget_silent(60_000)
    assert len(telemetry) == 1
    assert len(list(telemetry.series())) == 2
    assert telemetry.connected(9, TWO)
    assert not telemetry.connected(9, TWO)
    telemetry.disconnected(9)
    assert (len(telemetry), list(telemetry.series())) == (0, [])


def test_clients_and_series_are_bounded(telemetry: ClientTelemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "INSTANCES_MAX", 3)
    monkeypatch.setattr(clients, "SERIES_MAX", 4)
    for number in range(10, 15):
        client = b"%016d" % number
        push(
            telemetry, number, subscribe(telemetry, number, client).subscription_id, gauge_and_sum(1, 1), client=client
        )
    assert len(telemetry) == 3
    assert len(list(telemetry.series())) <= 4
