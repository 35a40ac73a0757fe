"""Strangers send mutated logins and TLS messages: nothing gets in, nothing grows, another producer goes on.

Seeds are fixed, so a run sends the same bytes again; only their order over the connections differs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.measured_producer import MeasuredProducer
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.login_frames import LoginFrames
from tests.support.security.stranger import OpenBroker, Strangers  # not the kit: listeners of several protocols

MIB = 1024 * 1024
WARM_UP = 2_000  # frames, by which every mechanism is loaded
LONGEST_WAIT_S_MAX = 30.0  # of the other producer: nothing hangs, also on a busy machine


@pytest.fixture
def broker(tmp_path: Path, ca: CertificateAuthority) -> Iterator[OpenBroker]:
    running = OpenBroker(tmp_path, ca)
    yield running
    running.end()


def descriptors(broker: OpenBroker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def fuzz(broker: OpenBroker, seed: int, count: int, rss_growth_max: int) -> None:
    broker.start()
    with MeasuredProducer(broker.plain, "produced") as producer:
        strangers = Strangers(broker.ports, seed)
        strangers.run(WARM_UP)
        rss_before, open_before = broker.rss_bytes(), descriptors(broker)
        producer.measured()
        began = time.monotonic()
        outcome = strangers.run(count)
        took_s = time.monotonic() - began
        longest_s, acknowledged = producer.measured()
        grown = broker.rss_bytes() - rss_before
    sys.stdout.write(
        f"{outcome.sent} frames on {sum(outcome.connections.values())} connections in {took_s:.0f} s, {outcome.answers} "
        f"answers: RSS grew by {grown / MIB:.1f} MiB from {rss_before / MIB:.1f}, descriptors from {open_before} to "
        f"{descriptors(broker)}; another producer waited at most {longest_s * 1000:.0f} ms for one of {acknowledged} answers\n"
    )
    assert not outcome.faults, "\n".join(outcome.faults[:10])
    log = broker.log()
    assert " ERROR " not in log
    assert len(log.splitlines()) < sum(outcome.connections.values()) / 2, "the log grows with the number of strangers"
    assert set(outcome.connections) == set(broker.ports)
    assert outcome.answers > count // 10
    assert grown < rss_growth_max
    assert descriptors(broker) < open_before + 40
    assert acknowledged > 0
    assert longest_s < LONGEST_WAIT_S_MAX


@pytest.mark.process
def test_thousands_of_frames_before_a_login(broker: OpenBroker) -> None:
    fuzz(broker, 1, 8_000, 16 * MIB)


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_million_frames_before_a_login(broker: OpenBroker, seed: int) -> None:
    """Five brokers take 200,000 each."""
    fuzz(broker, seed, 200_000, 16 * MIB)


def test_a_seed_gives_the_same_bytes_again() -> None:
    first, second = LoginFrames(7), LoginFrames(7)
    assert [first.requests() for _ in range(200)] == [second.requests() for _ in range(200)]
