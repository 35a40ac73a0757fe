"""read_committed filter: finds batches of aborted transactions in a fetched range, as Kafka's consumer does (KIP-98)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.records import CONTROL_ABORT, BatchHeader, crc_ok, decode_records, read_control


class AbortedFilter:
    """The filter of one fetched range; `aborted` are (producer_id, first_offset), in any order. Batches must ascend."""

    __slots__ = ("_heap", "aborting")

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        self._heap = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._heap)
        self.aborting: set[int] = set()  # producers with an aborted transaction at the present offset; never iterated

    def delivers(self, producer_id: int, last_offset: int, *, transactional: bool) -> bool:
        heap = self._heap
        while heap and heap[0][0] <= last_offset:
            self.aborting.add(heapq.heappop(heap)[1])
        return not (transactional and producer_id in self.aborting)

    def on_marker(self, producer_id: int, last_offset: int, *, abort: bool) -> None:
        """Applies a control batch: an ABORT marker ends the producer's aborted transaction."""
        heap = self._heap
        while heap and heap[0][0] <= last_offset:
            self.aborting.add(heapq.heappop(heap)[1])
        if abort:
            self.aborting.discard(producer_id)


def is_delivered(
    buffer: Buffer, position: int, header: BatchHeader, aborted: AbortedFilter | None, *, check_crcs: bool
) -> bool:
    """Whether to deliver the batch at `position`. A control batch updates `aborted`. Raises RemoteProtocolError."""
    if check_crcs and not crc_ok(buffer, position, header):
        raise RemoteProtocolError(f"the checksum of the batch at offset {header.base_offset} is wrong")
    if header.is_control:
        if aborted is not None and header.producer_id >= 0:
            marker = decode_records(buffer, position, header)
            abort = bool(marker) and read_control(marker[0]).type == CONTROL_ABORT
            aborted.on_marker(header.producer_id, header.last_offset, abort=abort)
        return False
    return aborted is None or aborted.delivers(
        header.producer_id, header.last_offset, transactional=header.is_transactional
    )
