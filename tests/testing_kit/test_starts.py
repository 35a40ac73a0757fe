"""Settings of single brokers, starts that nothing waits for, and clusters without the topics of the coordinators, in both modes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from barnabas.protocol.messages.admin import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.testing import Broker, Cluster, KitError, KitTimeout, process_backend
from barnabas.testing.backend import Mode
from tests.support.kit_modes import MODES, THREADS
from tests.support.oracle.wire import Wire

BROKER = 4  # of the types of resources
INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture(params=THREADS)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


@contextmanager
def starting(kafka: Cluster) -> Iterator[Cluster]:
    """A cluster whose brokers start while the test goes on."""
    kafka.start(wait=False)
    try:
        yield kafka
    finally:
        kafka.stop()


def setting(kafka: Cluster, broker_id: int, name: str) -> str | None:
    """Value of a setting, as the broker itself describes it."""
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name=str(broker_id), configuration_keys=[name])
    with Wire(kafka.broker(broker_id).address) as wire:
        (found,) = wire.call(DescribeConfigsRequest(resources=[resource]), 4).results
    value: str | None = found.configs[0].value
    return value


def internal_topics(kafka: Cluster) -> list[str]:
    """Names of the topics of the coordinators that are there."""
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in INTERNAL], allow_auto_topic_creation=False
    )
    with Wire(kafka.brokers[0].address) as wire:
        return [each.name for each in wire.call(asked, 9).topics if not each.error_code]


# -- settings of single brokers


def test_one_broker_has_settings_of_its_own_over_a_restart(mode: Mode) -> None:
    own = {2: {"broker.rack": "b", "num.partitions": 5}}
    with Cluster(2, mode=mode, config={"num.partitions": 3}, node_config=own) as kafka:
        for _ in range(2):
            assert [setting(kafka, each, "num.partitions") for each in (1, 2)] == ["3", "5"]
            with Wire(kafka.broker(1).address) as wire:
                racks = {each.node_id: each.rack for each in wire.call(MetadataRequest(topics=[]), 9).brokers}
            assert racks == {1: None, 2: "b"}
            kafka.restart(2)


@pytest.mark.parametrize(
    ("node_config", "text"),
    [
        ({4: {}}, r"node_config: broker 4 is unknown; this cluster has brokers 1, 2, 3"),
        ({"2": {}}, r"node_config: broker '2' is unknown"),
        ({True: {}}, r"node_config: broker True is unknown"),
        ({2: {"broker.rak": "b"}}, r"node_config\[2\]: unknown setting 'broker.rak'; did you mean 'broker.rack'\?"),
        (
            {2: {"num.partitions": 0}},
            r"node_config\[2\]: INVALID_CONFIG: Invalid value 0 for configuration num.partitions",
        ),
        ({2: "broker.rack=b"}, r"node_config\[2\]='broker.rack=b': write settings by broker id"),
        ([2], r"node_config=\[2\]: write settings by broker id, for example"),
    ],
)
def test_wrong_settings_of_single_brokers_are_refused(node_config: object, text: str) -> None:
    with pytest.raises(KitError, match=text):
        Cluster(node_config=node_config)  # type: ignore[arg-type]  # that is the test


def test_a_setting_of_the_kit_itself_is_refused_for_one_broker_too(mode: Mode) -> None:
    with pytest.raises(KitError, match=r"node_config\[2\]\['node.id'\] = '7': the kit sets it itself: .*; remove it"):
        Cluster(2, mode=mode, node_config={2: {"node.id": 7}})


# -- without internal topics


def test_a_cluster_has_the_internal_topics_only_if_they_are_wanted(mode: Mode) -> None:
    with Cluster(2, mode=mode) as kafka:
        assert internal_topics(kafka) == list(INTERNAL)
    with Cluster(2, mode=mode, internal_topics=False) as kafka:
        assert internal_topics(kafka) == []
    with pytest.raises(KitError, match="internal_topics='no': True or False"):
        Cluster(internal_topics="no")  # type: ignore[arg-type]  # that is the test


# -- starts that nothing waits for


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_brokers_start_while_the_test_goes_on(mode: Mode) -> None:
    with starting(Cluster(mode=mode)) as kafka:
        assert {each.state for each in kafka.brokers} <= {"starting", "running"}
        kafka.wait_until_ready()
        assert {each.state for each in kafka.brokers} == {"running"}
        assert kafka.create_topic("orders", 3) == "orders"
        kafka.kill(2)
        kafka.restart(2, wait=False)
        kafka.broker(2).wait_until_ready()
        assert kafka.broker(2).state == "running"


def test_a_broker_without_a_majority_starts_until_another_one_is_there(mode: Mode) -> None:
    with Cluster(mode=mode, internal_topics=False) as kafka:
        for each in (1, 2, 3):
            kafka.kill(each)
        kafka.restart(1, wait=False)
        assert kafka.broker(1).state == "starting"
        with pytest.raises(KitError, match=r"broker 1 is starting, so it cannot stop cleanly: wait_until_ready\(1\)"):
            kafka.stop_broker(1)
        with pytest.raises(
            KitError, match=r"broker 1 is starting, and only its process .* wait_until_ready\(1\) first"
        ):
            kafka.kill(1, lose="page_cache")
        kafka.pause(1)
        with pytest.raises(KitError, match="broker 1 is paused, so it does not get ready: resume it first"):
            kafka.wait_until_ready(1)
        kafka.resume(1)
        assert kafka.broker(1).state == "starting"
        kafka.kill(1)
        assert kafka.broker(1).state == "down"
        with pytest.raises(KitError, match="broker 1 is down, so it does not get ready: restart it first"):
            kafka.wait_until_ready(1)
        kafka.restart(1, wait=False)
        kafka.restart(2)
        kafka.wait_until_ready()
        assert [each.state for each in kafka.brokers] == ["running", "running", "down"]


@pytest.mark.process
def test_a_pause_waits_for_the_process_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    reap, waiting = process_backend._reap, threading.Event()

    def slow(broker: Any) -> None:
        waiting.wait(0.5)
        reap(broker)

    with Cluster(1, mode="process", internal_topics=False) as kafka:
        kafka.kill(1)
        monkeypatch.setattr(process_backend, "_reap", slow)
        kafka.restart(1, wait=False)
        kafka.pause(1)
        assert kafka.broker(1).state == "paused"
        kafka.resume(1)
        waiting.set()
        kafka.wait_until_ready()


def test_a_start_that_takes_too_long_is_named(mode: Mode) -> None:
    with Cluster(2, mode=mode, internal_topics=False) as kafka:
        kafka.kill(1)
        kafka.kill(2)
        kafka.restart(1, wait=False)
        core = kafka.core()
        core.timeout_s = 0.2  # without a majority no time is enough
        with pytest.raises(KitTimeout, match=r"the start of broker 1 took longer than 0.2 s; missing: broker 1 ready"):
            kafka.wait_until_ready(1)


def test_a_start_that_fails_is_told_by_the_wait_or_at_the_end(mode: Mode) -> None:
    def fails(kafka: Cluster) -> None:
        kafka.start(wait=False)
        deadline = time.monotonic() + 60
        while kafka.brokers[0].state != "down":
            assert time.monotonic() < deadline
            time.sleep(0.01)

    wrong = {"ssl.keystore.location": "/nowhere/keys.pem", "ssl.keystore.type": "PEM"}
    waited = Broker(mode=mode, security_protocol="SSL", config=wrong)
    fails(waited)
    with pytest.raises(Exception, match=r"/nowhere/keys\.pem"):
        waited.wait_until_ready()
    waited.stop()
    ended = Broker(mode=mode, security_protocol="SSL", config=wrong)
    fails(ended)
    with pytest.raises(KitError, match=r"the start of broker 1 failed: .*/nowhere/keys.pem"):
        ended.stop()


def test_what_changes_during_a_start_reaches_the_broker_when_it_serves(mode: Mode) -> None:
    with Cluster(mode=mode) as kafka:
        for each in (1, 2, 3):
            kafka.kill(each)
        kafka.restart(3, wait=False)
        fault = kafka.faults.on("Metadata", broker=3).delay(0.001)
        kafka.isolate(3)
        kafka.restart(1, 2)
        kafka.wait_until_ready(1, 2)
        kafka.heal()
        kafka.wait_until_ready()
        assert fault.hits == 0
        with Wire(kafka.broker(3).address) as wire:
            wire.call(MetadataRequest(topics=[]), 9)
        assert fault.hits == 1


def test_a_cluster_that_still_starts_can_be_stopped(mode: Mode) -> None:
    kafka = Cluster(mode=mode)
    for _ in range(2):
        kafka.start(wait=False)
        kafka.stop()
    assert not kafka.runs


async def test_the_same_as_coroutines() -> None:
    kafka = Cluster(2)
    await kafka.aio.start(wait=False)
    try:
        await kafka.aio.wait_until_ready()
        await kafka.aio.restart(2, wait=False)
        await kafka.aio.wait_until_ready(2)
        assert kafka.broker(2).state == "running"
    finally:
        await kafka.aio.stop()


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(KitError, match=r"start\(wait=False\) creates no topics: call create_topic\(\)"):
        Cluster(topics={"a": 1}).start(wait=False)
    make: Any = Cluster
    kafka: Any = Cluster()
    for call in (kafka.start, kafka.restart):
        with pytest.raises(TypeError, match=r"unknown option 'wate'; did you mean 'wait'\?"):
            call(wate=False)
    with pytest.raises(TypeError, match=r"unknown option 'node_conf'; did you mean 'node_config'\?"):
        make(node_conf={})


def test_an_unknown_broker_is_not_waited_for(mode: Mode) -> None:
    with Broker(mode=mode) as kafka, pytest.raises(KitError, match="broker 2 is unknown; this cluster has broker 1"):
        kafka.wait_until_ready(2)
