"""Sends huge requests to a broker of their own, one after another, and watches what that does to others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.oracle.wire import Wire
from tests.support.processes.huge.request import CLOSED, BrokerObjects, Huge
from tests.support.processes.measured_producer import MeasuredProducer
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker
from tests.support.processes.watched_broker import VARIABLE, LongestTurn
from tests.support.requests import answer_in, codes_in, frame_of

ANSWER_SECONDS_MAX = 120.0


@dataclass(slots=True)
class Stalled:
    """What one request did.

    pause_s: the longest wait of another producer, while the request was served and right after.
    p999_s: the 99.9th percentile of its waits while the request was served.
    turn_s: the longest turn of the broker's loop, in CPU time.
    growth_bytes: of the broker's resident memory, from before the request until after its answer.
    stacks: where the CPU time of long turns went, if the broker prints it.
    """

    huge: Huge
    pause_s: float
    p999_s: float
    produced: int
    turn_s: float
    growth_bytes: int
    answer_s: float
    answer_bytes: int
    codes: frozenset[int]
    stacks: str

    @property
    def as_expected(self) -> bool:
        """Whether every code of the answer is one that may be there, and it has one."""
        return bool(self.codes) and self.codes <= self.huge.codes


def send_each(folder: Path, world: BrokerObjects, requests: Sequence[Huge], *settings: str) -> Iterator[Stalled]:
    """Starts a broker and sends it the requests, each over a connection of its own."""
    (controller_port,) = free_ports(1)
    address = f"127.0.0.1:{controller_port}"
    broker = ServedBroker(
        folder / "data",
        "metrics.listen=127.0.0.1:0",  # so that it takes the metrics of clients
        *settings,
        module="tests.support.processes.watched_broker",
        arguments=["--controller-listen", address, "--quorum", f"1@{address}"],
    )
    turn_file = folder / "longest-turn"
    os.environ[VARIABLE] = str(turn_file)
    try:
        with LongestTurn(turn_file) as longest:
            broker.start()
            with Wire(broker.address, timeout_s=ANSWER_SECONDS_MAX) as wire:
                wire.create_topic("quiet")
                world.prepare(wire)
            with MeasuredProducer(broker.address, "quiet") as producer:
                for huge in requests:
                    port = broker.port if huge.listener == "broker" else controller_port
                    yield _send(broker, port, huge, world, producer, longest)
        assert broker.stop(60) == 0, broker.log()
        assert "Traceback" not in broker.log(), broker.log()
    finally:
        os.environ.pop(VARIABLE, None)
        broker.kill()


def _send(
    broker: ServedBroker, port: int, huge: Huge, world: BrokerObjects, producer: MeasuredProducer, longest: LongestTurn
) -> Stalled:
    request = huge.request(world)
    frame = frame_of(request, huge.version, 1, "huge")
    before = broker.rss_bytes()
    logged = len(broker.log())
    producer.measured()
    longest.seconds = 0.0
    began = time.monotonic()
    with Wire(f"127.0.0.1:{port}", timeout_s=ANSWER_SECONDS_MAX) as peer:
        answer = _exchange(peer, frame)
    answer_s = time.monotonic() - began
    pause_s, produced = producer.measured()
    p999_s = producer.p999_s
    later_s, _ = producer.measured()  # one more answer from the broker: the turn of ours is measured by then
    pause_s = max(pause_s, later_s)
    turn_s = longest.seconds
    growth_bytes = broker.rss_bytes() - before
    codes, size_bytes = {CLOSED}, 0
    if answer is not None:
        codes = codes_in(answer_in(answer, type(request).API_KEY, huge.version)) or {0}
        size_bytes = len(answer) + 4
    return Stalled(
        huge,
        pause_s,
        p999_s,
        produced,
        turn_s,
        growth_bytes,
        answer_s,
        size_bytes,
        frozenset(codes),
        _stacks(broker.log()[logged:]),
    )


def _stacks(logged: str) -> str:
    """The lines of watched_broker.Stacks."""
    return "".join(line for line in logged.splitlines(keepends=True) if line.startswith(("turn of", "  ")))


def _exchange(peer: Wire, frame: bytes) -> bytes | None:
    """The frame of the answer; None where the broker closes."""
    try:
        peer.socket.sendall(frame)
        return peer.next_frame()
    except ConnectionError:
        return None
