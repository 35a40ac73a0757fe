"""Attacks of many connections, costly batches and costly requests on one broker, and what they do to a producer beside them."""

from __future__ import annotations

import os
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.oracle.wire import Wire
from tests.support.processes.huge.request import named, names, numbered
from tests.support.processes.measured_producer import MeasuredProducer
from tests.support.processes.ports import free_ports
from tests.support.processes.request_attacks import join_and_leave, leave_reads, without_partitions
from tests.support.processes.served import ServedBroker
from tests.support.processes.watched_broker import VARIABLE, LongestTurn
from tests.support.requests import codes_in, frame_of, request_of

OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
NOW_MS: Final = 1_700_000_000_000
TEXT: Final = b"".join(b"%d lorem ipsum dolor %d\n" % (n, n * 7919 % 10_007) for n in range(60_000))[:1_000_000]
PIECE: Final = bytes(128 * 1024)
SEND_SECONDS: Final = 6.0
ANSWER_SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    """A broker: its listeners without and with a login, and its port of metrics."""

    address: str
    sasl_address: str
    metrics_port: int


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. `run` raises AssertionError if the broker does not behave."""

    name: str
    run: Callable[[Target], None]


@dataclass(frozen=True, slots=True)
class Attacked:
    """What an attack did.

    pause_s: the longest wait of another producer.
    p999_s: the 99.9th percentile of its waits.
    turn_s: the longest turn of the broker's loop, in CPU time.
    growth_bytes: of the broker's resident memory, at its peak.
    """

    attack: Attack
    pause_s: float
    p999_s: float
    turn_s: float
    growth_bytes: int


def attack_each(folder: Path, attacks: Sequence[Attack]) -> Iterator[Attacked]:
    """Starts a broker for each attack."""
    for number, attack in enumerate(attacks):
        yield _attacked(folder / f"attacked-{number}", attack)


def _attacked(data: Path, attack: Attack) -> Attacked:
    plain, sasl, controller, metrics = free_ports(4)
    target = Target(f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}", metrics)
    settings = {
        "listeners": f"PLAINTEXT://{target.address},SASL://{target.sasl_address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": f"{OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
        "metrics.listen": f"127.0.0.1:{metrics}",
    }
    broker = ServedBroker(
        data,
        *(f"{key}={value}" for key, value in settings.items()),
        module="tests.support.processes.watched_broker",
        port=plain,
        listens=False,
        arguments=["--controller-listen", f"127.0.0.1:{controller}", "--quorum", f"1@127.0.0.1:{controller}"],
    )
    turn_file = data.with_suffix(".turn")
    os.environ[VARIABLE] = str(turn_file)
    try:
        with LongestTurn(turn_file) as longest:
            broker.start()
            with Wire(target.address) as wire:
                wire.create_topic("quiet")
                wire.create_topic("warm")
                wire.produce(9, "warm", 0, [b"loads the modules of a first request"])
            with MeasuredProducer(target.address, "quiet") as producer:
                before = broker.rss_bytes()
                _forget_peak(broker.pid)
                producer.measured()
                longest.seconds = 0.0
                attack.run(target)
                pause_s, _ = producer.measured()
                found = Attacked(attack, pause_s, producer.p999_s, longest.seconds, _peak_bytes(broker.pid) - before)
        assert broker.stop(60) == 0, broker.log()
        assert "Traceback" not in broker.log(), broker.log()
        return found
    finally:
        os.environ.pop(VARIABLE, None)
        broker.kill()


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


# -- batches


def _produce(target: Target, batch: bytes | bytearray, partitions: int, **configs: str) -> None:
    with Wire(target.address, timeout_s=ANSWER_SECONDS_MAX) as wire:
        topic = {
            "name": "attacked",
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        created = wire.call(request_of("CreateTopics", topics=[topic], timeout_ms=60_000), 7).topics[0]
        assert created.error_code == 0, created
        data = named(["attacked"], partition_data=numbered(partitions, key="index", records=batch))
        answer = wire.call(request_of("Produce", acks=-1, timeout_ms=60_000, topic_data=data), 9)
        assert codes_in(answer) <= {0}, codes_in(answer)


def _consume(target: Target, batch: bytes | bytearray, partitions: int, **configs: str) -> None:
    """Produces a batch to each partition, and reads them all by one request."""
    _produce(target, batch, partitions, **configs)
    wanted = numbered(partitions, key="partition", fetch_offset=0, partition_max_bytes=len(batch))
    request = request_of(
        "Fetch",
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=2**31 - 1,
        session_epoch=-1,
        topics=[{"topic": "attacked", "partitions": wanted}],
    )
    with Wire(target.address, timeout_s=ANSWER_SECONDS_MAX) as wire:
        (topic,) = wire.call(request, 11).responses
    assert sum(len(part.records or b"") for part in topic.partitions) > 50_000_000


def _batch(*values: bytes) -> bytearray:
    return build_batch([NewRecord(None, value, NOW_MS) for value in values])


def _recompressed(batch: bytearray, partitions: int) -> Callable[[Target], None]:
    return lambda target: _produce(target, batch, partitions, compression_type="zstd", compression_zstd_level="22")


# -- many connections


def _half_frames(target: Target, connections: int, size_bytes: int, api_key: int, version: int) -> None:
    """Each connection sends all but the end of a frame. Then the large request of another client is answered."""
    head = struct.pack(">ihhih", size_bytes, api_key, version, 1, -1) + bytes(1)
    _send_together(target.address, connections, b"", head, size_bytes - 1_000)
    with Wire(target.address, timeout_s=ANSWER_SECONDS_MAX) as wire:
        wire.call(request_of("Metadata", topics=named(names(10_000)), allow_auto_topic_creation=False), 12)


def _strangers(target: Target, first: bytes) -> None:
    """Connections that have not logged in send all but the end of a token of 524,000 bytes."""
    head = struct.pack(">ihhih", 524_000, 36, 2, 2, -1) + bytes(1)
    _send_together(target.sasl_address, 1_500, first, head, 520_000)
    with Wire(target.sasl_address, timeout_s=ANSWER_SECONDS_MAX) as wire:
        assert wire.call(request_of("SaslHandshake", mechanism="OAUTHBEARER"), 1).error_code == 0


def _send_together(address: str, connections: int, first: bytes, head: bytes, size_bytes: int) -> None:
    host, port = address.rsplit(":", 1)
    with ExitStack() as stack:
        peers: dict[socket.socket, int] = {}
        for _ in range(connections):
            peer = stack.enter_context(socket.create_connection((host, int(port)), 10))
            peer.sendall(first)
            peer.setblocking(False)
            peers[peer] = 0
        until = time.monotonic() + SEND_SECONDS
        while peers and time.monotonic() < until:
            for peer, sent in list(peers.items()):
                try:
                    part = head[sent:] or memoryview(PIECE)[: size_bytes - sent]
                    peers[peer] += peer.send(part)
                except BlockingIOError:
                    continue
                except OSError:  # the broker has closed it
                    del peers[peer]
                    continue
                if peers[peer] >= size_bytes:
                    del peers[peer]
            time.sleep(0.001)  # sockets that are full need the broker to read


def _half_requests_of_probes(target: Target) -> None:
    with ExitStack() as stack:
        for _ in range(80):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", target.metrics_port), 10))
            peer.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ")
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{target.metrics_port}/livez", timeout=30) as answer:
                assert answer.status == 200


def _handshake(mechanism: str) -> bytes:
    request: Any = request_of("SaslHandshake", mechanism=mechanism)
    return frame_of(request, 1, 1, "stranger")


ATTACKS: Final = (
    Attack("recompression: 24 batches of 1 MB, zstd 22", _recompressed(_batch(TEXT), 24)),
    Attack("recompression: 64 batches of 60 kB, zstd 22", _recompressed(_batch(TEXT[:60_000]), 64)),
    Attack(
        "recompression: 16 batches of 150 records, zstd 22",
        _recompressed(_batch(*(TEXT[at : at + 6_000] for at in range(0, 900_000, 6_000))), 16),
    ),
    Attack("Produce: 90 batches of 1 MB", lambda target: _produce(target, _batch(bytes(1_000_000)), 90)),
    Attack(
        "Produce: one record of 90 MB",
        lambda target: _produce(target, _batch(bytes(90_000_000)), 1, max_message_bytes="100000000"),
    ),
    Attack(
        "Fetch: one record of 90 MB",
        lambda target: _consume(target, _batch(bytes(90_000_000)), 1, max_message_bytes="100000000"),
    ),
    Attack("Fetch: 60 batches of 1 MB", lambda target: _consume(target, _batch(bytes(1_000_000)), 60)),
    Attack("half frames: 40 of 104 MB", lambda target: _half_frames(target, 40, 104_000_000, 0, 9)),
    Attack("half frames: 100 of 8 MB", lambda target: _half_frames(target, 100, 8_000_000, 3, 9)),
    Attack("half frames: 300 of 1 MB", lambda target: _half_frames(target, 300, 1_000_000, 3, 9)),
    Attack("strangers: 1,500 tokens of 520 kB without a handshake", lambda target: _strangers(target, b"")),
    Attack("strangers: 1,500 OAuth tokens of 520 kB", lambda target: _strangers(target, _handshake("OAUTHBEARER"))),
    Attack("metrics: 80 half requests", _half_requests_of_probes),
    Attack(
        "14 APIs: 4,700 and 9,400 topics without partitions", lambda target: without_partitions(target.address, 4_700)
    ),
    Attack("groups: 8,000 members join and leave", lambda target: join_and_leave(target.address, 8_000)),
    Attack("groups: 2,000 members join and leave", lambda target: join_and_leave(target.address, 2_000)),
    Attack("Metadata: 60 clients that leave", lambda target: leave_reads(target.address, 60)),
)
