"""The random choices of faults follow a seed; counts of faults survive the restart of a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.testing import Broker, KitError
from barnabas.testing.faults.rule import Rule
from barnabas.testing.faults.table import FaultTable
from tests.support.kit_modes import THREADS
from tests.support.oracle.wire import Wire
from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["codes", "plugin"]

REQUEST = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
FAILED = -1  # UNKNOWN_SERVER_ERROR
COUNT = 40


def codes(kafka: Broker, count: int = COUNT) -> list[int]:
    """The errors of Metadata requests of one connection."""
    with Wire(kafka.bootstrap_servers, client_id="app") as peer:
        return [int(peer.call(REQUEST, 9).topics[0].error_code) for _ in range(count)]


def hit_by(seed: int | None) -> tuple[list[int], list[int]]:
    """Which requests the first and the second fault of a new broker hit."""
    with Broker(topics={"orders": 1}, seed=seed) as kafka:
        found = []
        for _ in range(2):
            fault = kafka.faults.on("Metadata", probability=0.5, times=None).error("UNKNOWN_SERVER_ERROR")
            found.append(codes(kafka))
            fault.remove()
        return found[0], found[1]


def test_the_same_seed_hits_the_same_requests() -> None:
    first, second = hit_by(7)
    assert (first, second) == hit_by(7)
    assert first != second, "each fault has a stream of its own"
    assert hit_by(8)[0] != first
    assert {0, FAILED} == set(first)


def test_a_cleared_table_begins_its_streams_anew() -> None:
    with Broker(topics={"orders": 1}, seed=7) as kafka:
        found = []
        for _ in range(2):
            kafka.faults.on("Metadata", probability=0.5, times=None).error("UNKNOWN_SERVER_ERROR")
            found.append(codes(kafka))
            kafka.faults.clear()
    assert found[0] == found[1]


def test_without_a_seed_two_clusters_differ() -> None:
    assert hit_by(None) != hit_by(None)


def test_jitter_follows_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[int] = []
    later = FaultTable._call_later

    def at_once(self: FaultTable, delay_ms: int, run: Callable[[], None]) -> None:
        delays.append(delay_ms)
        later(self, 0, run)

    monkeypatch.setattr(FaultTable, "_call_later", at_once)
    for _ in range(2):
        with Broker(topics={"orders": 1}, seed=7) as kafka:
            kafka.faults.on("Metadata", times=5).delay(10, jitter=5)
            codes(kafka, 5)
    assert delays[:5] == delays[5:]
    assert len(set(delays)) > 1
    assert all(10_000 <= each < 15_000 for each in delays)


def test_draws_are_spread_evenly() -> None:
    rule = Rule("*", stream="7/test")
    drawn = [rule.drawn(number, "hit") for number in range(10_000)]
    assert all(0 <= each < 1 for each in drawn)
    for tenth in range(10):
        assert 850 < sum(tenth / 10 <= each < (tenth + 1) / 10 for each in drawn) < 1_150


@pytest.mark.parametrize("mode", THREADS)
@pytest.mark.parametrize("end", ["kill", "restart"])
def test_nth_survives_the_restart_of_its_broker(mode: Any, end: str) -> None:
    with Broker(topics={"orders": 1}, mode=mode) as kafka:
        fault = kafka.faults.on("Metadata", nth=3).error("UNKNOWN_SERVER_ERROR")
        assert codes(kafka, 2) == [0, 0]
        if end == "kill":
            kafka.kill()
        kafka.restart()
        assert codes(kafka, 3) == [FAILED, 0, 0]
        assert fault.hits == 1


def test_chance_goes_on_after_a_restart() -> None:
    """A broker that was killed in between hits the same requests as one that was not."""
    found = []
    for killed in (False, True):
        with Broker(topics={"orders": 1}, seed=7) as kafka:
            kafka.faults.on("Metadata", probability=0.5, nth=3, times=None).error("UNKNOWN_SERVER_ERROR")
            before = codes(kafka, COUNT // 2)
            if killed:
                kafka.kill()
                kafka.restart()
            found.append(before + codes(kafka, COUNT // 2))
    assert found[0] == found[1]


def test_a_wrong_seed_is_refused() -> None:
    with pytest.raises(KitError, match="seed='7': a whole number"):
        Broker(seed="7")  # type: ignore[arg-type]  # that is the point


def test_tests_follow_the_seed_of_the_run(pytester: pytest.Pytester) -> None:
    """By `--kafka-seed` and their own names, also on shared brokers."""
    pytester.makepyfile(
        test_it="""
        import pytest

        from tests.testing_kit.test_fault_seeds import codes

        @pytest.mark.parametrize("number", [1, 2])
        @pytest.mark.parametrize(
            "isolation", [pytest.param(each, marks=pytest.mark.kafka(isolation=each)) for each in ("cluster", "namespace")]
        )
        def test_it(kafka, kafka_faults, number, isolation):
            kafka.create_topic("orders")
            kafka_faults.on("Metadata", probability=0.5, times=None).error("UNKNOWN_SERVER_ERROR")
            print("codes", number, isolation, codes(kafka))
        """
    )

    def told(*options: str) -> list[str]:
        shown = pytester.runpytest_inprocess("-s", *options)
        shown.assert_outcomes(passed=4)
        return [line[line.index("codes") :] for line in shown.outlines if "codes" in line]

    whole = told("--kafka-seed=7")
    assert len({each.partition("[")[2] for each in whole}) == 4, "each test has a stream of its own"
    assert told("--kafka-seed=7") == whole
    assert told("--kafka-seed=8") != whole


def test_the_report_names_the_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(kafka_seed): print(f'used {kafka_seed}')")
    shown = pytester.runpytest_inprocess("-s")
    named = next(line for line in shown.outlines if line.startswith("kafka: --kafka-seed="))
    used = next(line for line in shown.outlines if "used " in line)
    assert named.partition("=")[2] == used.rpartition(" ")[2].strip(".")
    assert "kafka: --kafka-seed=7" in pytester.runpytest_inprocess("--kafka-seed=7").outlines
