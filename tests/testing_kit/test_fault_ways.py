"""While nothing is installed, a broker of the kit answers as an ordinary one: by the method of `Router`, with its routes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from barnabas.broker.api.router import Route, Router
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.testing import Broker
from barnabas.testing.history.core.events import FaultMet
from tests.support.oracle.wire import Wire

REQUEST = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])


@pytest.fixture
def kafka() -> Iterator[Broker]:
    with Broker(topics={"orders": 1}) as kafka:
        yield kafka


def router_of(kafka: Broker) -> Router:
    backend: Any = kafka.backend("the test")
    found: Router = backend._brokers[1].host.running.router
    return found


def code(kafka: Broker) -> int:
    with Wire(kafka.bootstrap_servers, client_id="app") as peer:
        return int(peer.call(REQUEST, 9).topics[0].error_code)


def is_ordinary(router: Router) -> bool:
    answer: Any = router.answer
    return getattr(answer, "__func__", None) is Router.answer and all(
        type(each) is Route for each in router.routes.values()
    )


def test_the_way_is_ordinary_unless_something_is_installed(kafka: Broker) -> None:
    router = router_of(kafka)
    assert code(kafka) == 0
    assert is_ordinary(router)
    fault = kafka.faults.on("Metadata").error("UNKNOWN_SERVER_ERROR")
    assert not is_ordinary(router)
    assert code(kafka) == -1
    fault.remove()
    assert is_ordinary(router)
    kafka.faults.on("Metadata").disconnect(at="half_answered")
    with pytest.raises(ConnectionResetError):
        code(kafka)
    kafka.faults.clear()
    assert code(kafka) == 0
    assert is_ordinary(router)


def test_a_connection_stays_throttled_when_its_fault_is_removed(kafka: Broker) -> None:
    fault = kafka.faults.on("Metadata").throttle(60_000)
    with Wire(kafka.bootstrap_servers, client_id="app", timeout_s=30) as peer:
        assert peer.call(REQUEST, 9).throttle_time_ms == 60_000, "the answer is not late"
        fault.remove()
        peer.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.call(REQUEST, 9)
    assert code(kafka) == 0, "another connection is served"
    assert is_ordinary(router_of(kafka)), "the throttled connection has ended"


def test_a_released_request_does_not_meet_its_fault_again_while_another_connection_is_throttled(kafka: Broker) -> None:
    kafka.faults.on("Metadata", client="slow").throttle(60_000)
    held = kafka.faults.on("Metadata", client="app", times=None).hold()
    with Wire(kafka.bootstrap_servers, client_id="slow") as slow, ThreadPoolExecutor(1) as pool:
        slow.call(REQUEST, 9)
        answered = pool.submit(code, kafka)
        held.wait(timeout=60)
        held.release()
        assert held.hits == 1
        assert answered.result(timeout=60) == 0


def test_a_recorded_history_knows_hits_and_no_mere_matches(kafka: Broker) -> None:
    router = router_of(kafka)
    history = kafka.history
    assert not is_ordinary(router)
    kafka.faults.on("Metadata", nth=2).error("UNKNOWN_SERVER_ERROR")
    assert [code(kafka), code(kafka), code(kafka)] == [0, -1, 0]
    assert len(history.of(FaultMet)) == 1
    kafka.faults.clear()
    assert not is_ordinary(router), "the history still records"
