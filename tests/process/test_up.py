"""`barnabas up` as a user runs it: the ready line, a node that dies and how it comes back, Ctrl-C, the same data again."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.processes.cli import called
from tests.support.processes.up import COMMAND, SECONDS_MAX, Up, data

pytestmark = pytest.mark.process
__all__ = ["data"]  # a fixture


def await_brokers(bootstrap: str, count: int) -> None:
    """Waits until the broker that is asked knows this number of brokers."""
    deadline = time.monotonic() + SECONDS_MAX
    while (shown := called("cluster", "-b", bootstrap)).stdout.count("\n  broker ") != count:
        assert time.monotonic() < deadline, shown


def test_a_cluster_lives_through_a_death_and_a_stop(data: Path) -> None:
    up = Up(
        data,
        *("--port", "0", "--set", "transaction.state.log.num.partitions=3", "--set", "num.partition=2"),
        *("--set", "num.io.threads=9"),
    )
    try:
        assert len(up.bootstrap.split(",")) == len(up.nodes()) == 3
        await_brokers(up.bootstrap, 3)
        at = ("-b", up.bootstrap)
        assert "replication factor 3" in called("topic", "create", "orders", *at).stdout
        assert "min.insync.replicas" not in called("topic", "describe", "orders", *at).stdout  # it is the cluster's
        written = called("produce", "orders", "--transactional-id", "t", *at, stdin="tea\ncoffee\n")
        assert written.stderr == "wrote 2 records to orders\n"

        os.kill(up.nodes()[2], signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_MAX
        while "To bring it back: " not in up.stderr():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "node 2 was killed by signal 9" in up.stderr()
        assert called("produce", "orders", *at, stdin="milk\n").returncode == 0
        again = shlex.split(up.stderr().partition("To bring it back: ")[2].splitlines()[0])
        back = subprocess.Popen([*COMMAND, *again[1:]], stdout=subprocess.PIPE, text=True)
        try:
            assert back.stdout is not None
            assert back.stdout.readline().startswith("ready node=2 ")
            await_brokers(up.bootstrap, 3)
        finally:
            back.send_signal(signal.SIGTERM)
            assert back.wait(SECONDS_MAX) == 0
        ports = (data / "quorum-ports").read_text()
        assert up.end() == 0
        assert up.stderr().splitlines()[:2] == [  # said once, for all three nodes
            "barnabas up: setting 'num.io.threads' has no effect here: one event loop does this work",
            "barnabas up: unknown setting 'num.partition' ignored; did you mean 'num.partitions'?",
        ]
        lines = up.stderr().splitlines()
        assert len([line for line in lines if line.startswith("barnabas up: ")]) == 3, up.stderr()
        assert any(
            re.match(r"node [13]: .* WARNING kafka.controller: Broker is fenced.* broker=2 ", line) for line in lines
        )
        assert not [line for line in lines if "Setting" in line or "consent" in line], up.stderr()
    finally:
        up.kill()
    assert all((data / f"node-{number}" / ".kafka_cleanshutdown").exists() for number in (1, 2, 3))

    up = Up(data, "--port", "0")
    try:
        read = called("consume", "orders", "--from-beginning", "--exit-at-end", "-b", up.bootstrap)
        assert sorted(read.stdout.split()) == ["coffee", "milk", "tea"]
        assert (data / "quorum-ports").read_text() == ports
        assert up.end(signal.SIGHUP) == 0  # the terminal is closed
    finally:
        up.kill()


def test_one_broker_and_the_end_of_the_last_node(data: Path) -> None:
    up = Up(data, "--brokers", "1", "--port", "0")
    try:
        assert "replication factor 1" in called("topic", "create", "t", "-b", up.bootstrap).stdout
        os.kill(up.nodes()[1], signal.SIGTERM)
        assert up.process.wait(SECONDS_MAX) == 1
        assert "node 1 ended with exit code 0" in up.stderr()
        assert "no node is left" in up.stderr()
    finally:
        up.kill()
