"""A broker that may open few files and connections: clients are refused before files are, and all comes back."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.protocol.messages.metadata import ApiVersionsRequest
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker  # not the kit: a limit of descriptors

pytestmark = pytest.mark.process

DESCRIPTORS_MAX = 256
CONNECTS = 1_000


@pytest.fixture
def few(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker under `ulimit -n 256`."""
    broker = ServedBroker(
        tmp_path / "data", "log.segment.bytes=1048576", "num.partitions=4", descriptors_max=DESCRIPTORS_MAX
    )
    yield broker.start()
    broker.end()


def test_a_thousand_connects_with_256_descriptors(few: ServedBroker) -> None:
    """A crowd connects while logs roll and topics are made. What is acknowledged is there, and the crowd's end frees everything."""
    values = [b"%06d" % n + b"x" * 200_000 for n in range(24)]
    sent: list[bytes] = []
    crowd: list[socket.socket] = []
    began = time.monotonic()
    try:
        with Wire(few.address) as wire:
            wire.create_topic("kept")
            for n in range(CONNECTS):
                crowd.append(socket.create_connection(("127.0.0.1", few.port), timeout=60))
                if n % 50 == 49:
                    # A segment of 1 MiB holds five of these: the log rolls all the time.
                    for value in values[len(sent) : len(sent) + 1]:
                        assert wire.produce(8, "kept", 0, [value]).error_code == 0
                        sent.append(value)
                    wire.create_topic(f"new-{n}", 4)
                    assert wire.produce(8, f"new-{n}", 3, [b"first"]).error_code == 0
            assert len(os.listdir(f"/proc/{few.pid}/fd")) <= DESCRIPTORS_MAX
            deadline = time.monotonic() + 60
            while (refused := sum(is_ended(each) for each in crowd)) <= CONNECTS - DESCRIPTORS_MAX:
                assert time.monotonic() < deadline, f"{refused} of {CONNECTS} connections are refused"
                time.sleep(0.05)
            assert refused < CONNECTS
    finally:
        for each in crowd:
            each.close()
    log = few.log()
    assert "Connections are refused" in log
    assert log.count("Connections are refused") <= time.monotonic() - began + 2, "one line a second"
    assert "offline" not in log
    await_fewer_descriptors(few, 150)
    with contextlib.ExitStack() as stack:
        for _ in range(50):  # as many as before find room again
            again = stack.enter_context(Wire(few.address))
            assert again.call(ApiVersionsRequest(), 0).error_code == 0
    few.restart(kill=True)
    with Wire(few.address) as wire:
        assert [value for at in range(len(sent)) for value in fetched(wire, "kept", 0, at)[:1]] == sent
        for n in range(49, CONNECTS, 50):
            assert fetched(wire, f"new-{n}", 3, 0) == [b"first"]


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    broker = ServedBroker(tmp_path / "data", soft_descriptors_max=200).start()
    try:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        assert f"open files and connections: allowed={hard} soft_limit_before=200" in broker.log()
    finally:
        broker.end()


def is_ended(peer: socket.socket) -> bool:
    """Whether the broker has ended this connection, of which it waits for nothing."""
    peer.settimeout(0.0)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def await_fewer_descriptors(broker: ServedBroker, count: int) -> None:
    deadline = time.monotonic() + 60
    while (held := len(os.listdir(f"/proc/{broker.pid}/fd"))) >= count:
        assert time.monotonic() < deadline, f"{held} descriptors are still open"
        time.sleep(0.05)


def fetched(wire: Wire, topic: str, partition: int, offset: int) -> list[bytes | None]:
    from barnabas.protocol.records import decode_records, iter_batches

    data = wire.fetch(topic, partition, offset)
    assert data.error_code == 0
    return [r.value for at, header in iter_batches(data.records) for r in decode_records(data.records, at, header)]
