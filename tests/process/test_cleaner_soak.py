"""Half a million transactions with restarts: the coordinators' logs stay as small as their segments, and nothing is forgotten.

`BARNABAS_TRANSACTIONS` (500,000) says how many, `BARNABAS_STATE` keeps the data directory for a look; the figures are printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest

from barnabas.protocol import registry
from barnabas.protocol.messages.groups import OffsetFetchRequest
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.protocol.schema import decode, encode
from tests.support.oracle.wire import NOT_READY, Wire
from tests.support.processes.served import ServedBroker  # not the kit: its data directory can be named

pytestmark = [pytest.mark.process, pytest.mark.soak]

TRANSACTIONS = int(os.environ.get("BARNABAS_TRANSACTIONS", "500000"))
PRODUCERS = 20
RESTARTS = 10
SEGMENT_BYTES = 16 << 20
CONCURRENT_TRANSACTIONS = 51
NOT_YET = {6, 19}  # the leader is not there, or cannot verify the transaction
TIMED_OUT = {47, 48, 90}  # where the machine stood still for a minute: the coordinator has ended the transaction
STATES = ("__transaction_state", "__consumer_offsets")


class Connection:
    """A connection that asks one thing at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, request: Any, version: int) -> Any:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        key = type(request).API_KEY
        header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="soak")
        body = encode(header, registry.request_header_version(key, version)) + encode(request, version)
        try:
            writer.write(pack(">i", len(body)) + body)
            (size,) = unpack(">i", await reader.readexactly(4))
            frame = await reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("closed") from error
        return decode(
            registry.API[key].response, frame, version, 4 + (1 if registry.response_header_version(key, version) else 0)
        )

    async def ready(self, request: Any, version: int) -> Any:
        """Asks until a coordinator is there and has ended what came before."""
        while True:
            answer = await self.call(request, version)
            if answer.error_code not in {CONCURRENT_TRANSACTIONS, *NOT_READY}:
                return answer
            await asyncio.sleep(0.005)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Retry(OSError):
    """The broker was restarted and is not ready: the producer begins anew."""


def check(answer: Any) -> None:
    if answer.error_code in NOT_READY or answer.error_code in NOT_YET | TIMED_OUT:
        raise Retry
    assert answer.error_code == 0, answer


class Run:
    """What has been done so far."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.ended = 0
        self.offsets = [0] * PRODUCERS  # the last one that each producer's group has for certain
        self.lost = 0  # transactions whose end was not answered

    async def produce(self, number: int) -> None:
        """One producer's transactions, through restarts of the broker."""
        transactional_id = f"producer-{number}"
        while self.ended < TRANSACTIONS:
            connection = Connection(self.broker.port)
            try:
                begin = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
                begun = await connection.ready(begin, 4)
                assert begun.error_code == 0, begun
                identity = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
                while self.ended < TRANSACTIONS:
                    identity = await self._transaction(connection, number, transactional_id, identity)
            except OSError:
                self.lost += 1
                await asyncio.sleep(0.05)
            finally:
                connection.close()

    async def _transaction(
        self, connection: Connection, number: int, transactional_id: str, identity: dict[str, Any]
    ) -> dict[str, Any]:
        count = self.ended
        batch = build_batch(
            [NewRecord(b"k%d" % number, b"v%d" % count, 1_700_000_000_000)],
            base_sequence=0,
            transactional=True,
            **identity,
        )
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=9_000, topic_data=[data])
        answer = (await connection.call(request, 12)).responses[0].partition_responses[0]
        check(answer)
        if count % 4 == 0:
            one = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=count, committed_metadata="")
            topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[one])]
            commit = TxnOffsetCommitRequest(
                transactional_id=transactional_id, group_id=f"group-{number}", topics=topics, member_id="", **identity
            )
            done = (await connection.call(commit, 5)).topics[0].partitions[0]
            check(done)
        ended = await connection.ready(
            EndTxnRequest(transactional_id=transactional_id, committed=count % 10 != 9, **identity), 5
        )
        check(ended)
        if count % 4 == 0 and count % 10 != 9:
            self.offsets[number] = count
        self.ended += 1
        return {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}

    def sizes(self) -> dict[str, int]:
        """Bytes of both state topics."""
        return {
            topic: sum(path.stat().st_size for path in self.broker.data.glob(f"{topic}-*/*.log")) for topic in STATES
        }


async def watch(run: Run, lives: list[dict[str, Any]]) -> None:
    """Restarts the broker when it is time, and notes how large its logs ever were."""
    largest = dict.fromkeys(STATES, 0)
    next_restart = TRANSACTIONS // (RESTARTS + 1)
    while run.ended < TRANSACTIONS:
        await asyncio.sleep(0.5)
        for topic, size in run.sizes().items():
            largest[topic] = max(largest[topic], size)
        if run.ended < next_restart:
            continue
        next_restart += TRANSACTIONS // (RESTARTS + 1)
        kill = len(lives) % 2 == 0
        rss = run.broker.rss_bytes()
        await asyncio.to_thread(run.broker.restart, kill=kill)
        began = time.monotonic()
        probe = Connection(run.broker.port)
        await probe.ready(InitProducerIdRequest(transactional_id="probe", transaction_timeout_ms=60_000), 4)
        probe.close()
        lives.append(
            {
                "ended": run.ended,
                "kill": kill,
                "bytes": run.sizes(),
                "largest": dict(largest),
                "rss_mb": rss >> 20,
                "ready_s": round(run.broker.ready_seconds, 2),
                "loaded_s": round(time.monotonic() - began, 2),
            }
        )
        sys.stdout.write(json.dumps(lives[-1]) + "\n")
        sys.stdout.flush()


def test_logs_of_coordinators_through_half_a_million_transactions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.processes.served.READY_SECONDS_MAX", 120.0)
    broker = ServedBroker(
        Path(os.environ.get("BARNABAS_STATE") or tmp_path / "data"),
        "log.cleaner.backoff.ms=1000",
        "transaction.state.log.num.partitions=1",
        f"transaction.state.log.segment.bytes={SEGMENT_BYTES}",
        "offsets.topic.num.partitions=1",
        f"offsets.topic.segment.bytes={SEGMENT_BYTES}",
    ).start()
    run = Run(broker)
    lives: list[dict[str, Any]] = []
    began = time.monotonic()
    try:
        with Wire(broker.address) as wire:
            wire.create_topic("t", **{"segment.bytes": str(4 << 20)})  # little of it is recovered after a kill
            wire.find_coordinator("group-0", 0)
            wire.find_coordinator("producer-0", 1)

        async def everything() -> None:
            await asyncio.gather(watch(run, lives), *(run.produce(number) for number in range(PRODUCERS)))

        with capsys.disabled():
            asyncio.run(everything())
            figures = {"seconds": round(time.monotonic() - began), "lost": run.lost, "bytes": run.sizes()}
            sys.stdout.write(json.dumps(figures) + "\n")
        with Wire(broker.address) as wire:
            for number, offset in enumerate(run.offsets):
                asked = OffsetFetchRequest(
                    group_id=f"group-{number}", topics=[TopicPartitionIndexes(name="t", partition_indexes=[0])]
                )
                while (answer := wire.call(asked, 7)).error_code in NOT_READY:  # it was killed a moment ago, and loads
                    time.sleep(0.05)
                committed = answer.topics[0].partitions[0].committed_offset
                assert committed >= offset
        assert broker.stop() == 0
    finally:
        broker.kill()
    for topic, size in run.sizes().items():
        assert size < 1.5 * SEGMENT_BYTES, topic
    assert "Traceback" not in broker.log()
