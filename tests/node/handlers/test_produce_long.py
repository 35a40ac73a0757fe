"""Produce requests that take long: batches that are inspected in a thread, many batches, many refused records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from barnabas.broker.front import connection
from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.scheduling.slices import COSTS_PER_UNIT, TURN_UNITS_MAX
from barnabas.errors import ErrorCode
from barnabas.limits import RECORD_ERRORS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import compress
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.protocol.messages.produce import PartitionProduceData
from barnabas.protocol.records import decode_records
from barnabas.runtime.offload import in_own_thread
from barnabas.storage import inspection, partition_log
from barnabas.storage.inspection import Inspection
from tests.support.broker.nodes import Nodes, Peer, batch
from tests.support.broker.produces import produce, request

LONG = 20_000  # records: several slices


def long_batch(**fields: Any) -> bytes:
    return batch(*[b"v"] * LONG, **fields)


class Gate:
    """An Offload that waits until the test lets it go on."""

    def __init__(self, node: Node) -> None:
        self.asked = asyncio.Event()
        self.opened = asyncio.Event()
        node.slices.in_thread = partial(node.reactor.run_beside, self.run)

    async def run(self, work: Callable[[], None]) -> None:
        self.asked.set()
        await self.opened.wait()
        work()


@pytest.mark.parametrize("compression", [0, 1, 4])
@pytest.mark.parametrize("acks", [1, -1])
async def test_a_long_batch_is_taken(peer: Peer, node: Node, compression: int, acks: int) -> None:
    await peer.create("t")
    answer = await produce(peer, 9, request(long_batch(compression=compression), acks=acks))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    found = node.replicas.leader("t", 0).log.read(0, 10**7, end_offset=LONG)
    assert len(decode_records(found.records)) == LONG


async def test_a_long_batch_is_recompressed_for_a_topic_that_wants_it(peer: Peer, node: Node) -> None:
    await peer.create("t", compression_type="zstd")
    assert (await produce(peer, 9, request(long_batch(compression=1)))).error_code == 0
    found = node.replicas.leader("t", 0).log.read(0, 10**7, end_offset=LONG)
    assert found.records[22] & 7 == 4
    assert len(decode_records(found.records)) == LONG


async def test_no_batch_is_recompressed_in_the_loop(peer: Peer, node: Node) -> None:
    """The slowest level takes 30 ms for 60 kB, and a request may have many such batches."""
    await peer.create("t", 8, compression_type="zstd", compression_zstd_level="22")
    loop, threads = threading.get_ident(), set()
    node.slices.in_thread = partial(node.reactor.run_beside, in_own_thread)
    packed = compress

    def noting(codec: int, data: Buffer, level: int | None = None) -> bytes:
        threads.add(threading.get_ident())
        return packed(codec, data, level)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inspection, "compress", noting)
        sent = request(None)
        sent.topic_data[0].partition_data = [
            PartitionProduceData(index=number, records=batch(bytes(60_000), compression=number % 5))
            for number in range(8)
        ]
        answers = (await peer.call(sent, 9)).responses[0].partition_responses
    assert [one.error_code for one in answers] == [0] * 8
    assert threads
    assert loop not in threads


async def test_later_requests_of_the_connection_wait_and_others_do_not(nodes: Nodes, node: Node, peer: Peer) -> None:
    await peer.create("t")
    gate = Gate(node)
    sent = [peer.send(request(long_batch(compression=4)), 9), peer.send(request(batch(b"x")), 9)]
    await gate.asked.wait()
    other = await nodes.peer(node)
    assert (await produce(other, 9, request(batch(b"y")))).base_offset == 0
    gate.opened.set()
    offsets = [(await peer.receive(each)).responses[0].partition_responses[0].base_offset for each in sent]
    assert offsets == [1, LONG + 1]


async def test_a_connection_that_closes_meanwhile_leaves_no_record(nodes: Nodes, node: Node, peer: Peer) -> None:
    await peer.create("t")
    gate = Gate(node)
    other = await nodes.peer(node)
    other.send(request(long_batch(compression=4)), 9)
    await gate.asked.wait()
    other.writer.close()
    await other.writer.wait_closed()
    while len(node.server.connections) > 1:  # noqa: ASYNC110  # what is waited for has no event for tests
        await asyncio.sleep(0)
    gate.opened.set()
    assert (await produce(peer, 9, request(batch(b"x")))).base_offset == 0
    assert (await produce(peer, 9, request(long_batch()))).base_offset == 1


async def test_several_long_batches_in_one_request_are_taken_in_order(peer: Peer) -> None:
    await peer.create("t", 3)
    sent = request(None)
    sent.topic_data[0].partition_data = [
        PartitionProduceData(index=number, records=records)
        for number, records in ((0, long_batch()), (1, batch(b"a")), (2, long_batch(compression=2)), (0, batch(b"b")))
    ]
    answer = await peer.call(sent, 9)
    assert [one.base_offset for one in answer.responses[0].partition_responses] == [0, 0, 0, LONG]


async def test_many_batches_are_appended_over_several_turns(peer: Peer) -> None:
    """Also those of known partitions behind those of unknown ones; with acks=0 nothing is answered."""
    await peer.create("t", 2)
    many = 1_000
    for acks in (1, 0):
        sent = request(None, acks=acks)
        sent.topic_data[0].partition_data = [
            PartitionProduceData(index=number % 2, records=batch(b"a")) for number in range(many)
        ]
        waiting = peer.send(sent, 9)
        if acks:
            answer = await peer.receive(waiting)
            offsets = [one.base_offset for one in answer.responses[0].partition_responses]
            assert offsets == [number // 2 for number in range(many)]
    assert (await produce(peer, 9, request(batch(b"x")))).base_offset == many


def units_of_turns(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the batches of each turn cost, noted from now on."""
    noted, slices, count = [0], node.slices, node.slices.count

    def noting(units: int) -> None:
        if not slices.turn_is_over:
            noted[-1] += units
        count(units)
        if slices.turn_is_over:
            noted.append(0)

    monkeypatch.setattr(slices, "count", noting)
    monkeypatch.setattr(connection, "RECEIVED_BYTES_PER_UNIT", 1 << 40)  # the bytes that arrive are not noted
    return noted


async def test_large_batches_of_few_records_are_appended_over_several_turns(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create("t", 1)
    turns = units_of_turns(node, monkeypatch)
    size = 900_000
    sent = request(None)
    sent.topic_data[0].partition_data = [PartitionProduceData(index=0, records=batch(bytes(size))) for _ in range(40)]
    answer = await peer.call(sent, 9)
    assert [one.base_offset for one in answer.responses[0].partition_responses] == list(range(40))
    units = size // 1_024 // COSTS_PER_UNIT
    assert len(turns) >= 40 * units // TURN_UNITS_MAX
    assert max(turns) < TURN_UNITS_MAX + 2 * units


@pytest.mark.parametrize("compression", [0, 4])
async def test_an_answer_lists_no_more_refused_records_than_its_bound(peer: Peer, compression: int) -> None:
    await peer.create("t", cleanup_policy="compact")
    keyless = long_batch(compression=compression)
    sent = request(None)
    sent.topic_data[0].partition_data = [PartitionProduceData(index=0, records=keyless) for _ in range(3)]
    answers = (await peer.call(sent, 9)).responses[0].partition_responses
    assert [one.error_code for one in answers] == [ErrorCode.INVALID_RECORD] * 3
    listed = [error.batch_index for one in answers for error in one.record_errors]
    assert listed == list(range(RECORD_ERRORS_MAX))


async def test_a_long_batch_that_lies_is_refused_and_acks_0_closes(peer: Peer, nodes: Nodes, node: Node) -> None:
    await peer.create("t")
    cut = bytearray(long_batch())
    cut[61:] = cut[62:]
    cut[8:12] = (len(cut) - 12).to_bytes(4, "big")
    cut[17:21] = crc32c(bytes(cut[21:])).to_bytes(4, "big")
    assert (await produce(peer, 9, request(bytes(cut)))).error_code == ErrorCode.INVALID_RECORD
    other = await nodes.peer(node)
    other.send(request(bytes(cut), acks=0), 9)
    assert await other.is_closed()
    assert (await peer.call(ApiVersionsRequest(), 0)).error_code == 0


async def test_space_is_reserved_for_a_large_batch(peer: Peer, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its append writes over zeros, after slices of the loop that reserved their space."""
    monkeypatch.setattr(partition_log, "RESERVED_BYTES_MIN", 3_000_000)
    await peer.create("t", max_message_bytes="10000000")
    disk, sizes = node.replicas.leader("t", 0).log._disk, []
    append = Replica.append

    def noting(self: Replica, *given: Any, **more: Any) -> Any:
        if isinstance(given[0], Inspection):
            sizes.append(disk.size("t-0/00000000000000000000.log"))
        return append(self, *given, **more)

    monkeypatch.setattr(Replica, "append", noting)
    large = batch(bytes(4_000_000))
    assert (await produce(peer, 9, request(large))).error_code == 0
    assert sizes == [len(large)]
