"""A stream of hostile requests against one broker: every answer is well-formed, nothing grows, another producer goes on.

Seeds are fixed, so a run sends the same requests again; only their order over the connections differs.
"""

from __future__ import annotations

import sys

import pytest

from barnabas.protocol import registry
from tests.support.processes.fixtures import Serve
from tests.support.processes.fuzzing import PRODUCED_TOPIC, Fuzzer, descriptors, internal_errors
from tests.support.processes.hostile_requests import HostileRequests, RequestTargets
from tests.support.processes.measured_producer import MeasuredProducer
from tests.support.processes.process_tree import rss_bytes

MIB = 1024 * 1024
WARM_UP = 2_000  # requests, by which every handler is loaded and every codec made
LONGEST_WAIT_S_MAX = 30.0  # of the other producer: nothing hangs, also on a busy machine


def fuzz(serve: Serve, seed: int, count: int, rss_growth_max: int) -> None:
    broker = serve("group.initial.rebalance.delay.ms=0", "group.consumer.session.timeout.ms=60000")
    with MeasuredProducer(broker.bootstrap_servers, PRODUCED_TOPIC) as producer:
        fuzzer = Fuzzer(broker.bootstrap_servers, lambda: broker.broker(1).log, seed)
        fuzzer.run(WARM_UP)
        fuzzer.refresh()
        rss_before, open_before = rss_bytes(broker), descriptors(broker)
        outcome = fuzzer.run(count - WARM_UP)
        fuzzer.refresh()
        longest_s, acknowledged = producer.measured()
        grown = rss_bytes(broker) - rss_before
        sys.stdout.write(
            f"{outcome.sent} requests: {sum(outcome.answered.values())} answered, {sum(outcome.closed.values())} closed; "
            f"RSS grew by {grown / MIB:.1f} MiB, descriptors from {open_before} to {descriptors(broker)}; "
            f"another producer waited at most {longest_s * 1000:.0f} ms for one of {acknowledged} answers\n"
        )
        assert not outcome.faults, "\n".join(outcome.faults[:10])
        assert not internal_errors(broker)
        assert outcome.sent == count
        served = {api.name for api in registry.API.values() if "broker" in api.listeners}
        assert set(outcome.answered) == served
        assert grown < rss_growth_max
        assert descriptors(broker) < open_before + 40, "connections and files of deleted topics are closed"
        assert acknowledged > 0
        assert longest_s < LONGEST_WAIT_S_MAX


@pytest.mark.process
def test_thousands_of_hostile_requests(serve: Serve) -> None:
    fuzz(serve, 1, 8_000, 64 * MIB)


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_million_hostile_requests(serve: Serve, seed: int) -> None:
    """Five brokers take 200,000 each."""
    fuzz(serve, seed, 200_000, 128 * MIB)


def test_a_seed_gives_the_same_requests_again() -> None:
    first, second = HostileRequests(7, RequestTargets()), HostileRequests(7, RequestTargets())
    assert [first.next() for _ in range(2_000)] == [second.next() for _ in range(2_000)]
