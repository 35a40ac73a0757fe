"""Transaction markers of led partitions: WriteTxnMarkers (KIP-98, KIP-1228)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.slices import COSTS_PER_UNIT, Slices
from barnabas.errors import BrokerError
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.protocol.messages.shared import PartitionResult, TopicResult
from barnabas.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.work import UNITS_PER_SLICE

APPEND_UNITS: Final = 10  # of one marker: 25 microseconds, or half a millisecond if its files must be opened first
REFUSAL_UNITS: Final = 2


def _raise(error: BaseException) -> None:
    """A bug: every refusal of a log is an answer."""
    raise error


class MarkerWriter:
    """Writes markers. NONE means the marker is below the high watermark; a group learns of the outcome only then."""

    def __init__(self, slices: Slices, replicas: Replicas, groups: GroupCoordinator) -> None:
        self._slices = slices
        self._replicas = replicas
        self._groups = groups

    def write(self, request: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]) -> None:
        """Appends all markers, a slice in each turn of the loop; answers when they are committed, maybe within this call."""
        _Writing(self._slices, self._replicas, self._groups, request, done).write()


class _Writing:
    """One request: the answers so far, and the number of awaited commits."""

    __slots__ = ("_awaited", "_done", "_groups", "_replicas", "_response", "_rest", "_slices")

    def __init__(
        self,
        slices: Slices,
        replicas: Replicas,
        groups: GroupCoordinator,
        request: WriteTxnMarkersRequest,
        done: Callable[[WriteTxnMarkersResponse], None],
    ) -> None:
        self._slices = slices
        self._replicas = replicas
        self._groups = groups
        self._done = done
        self._response = WriteTxnMarkersResponse()
        self._rest = self._append_each(request)  # markers that are not appended yet
        self._awaited = 1  # 1 for the writing itself, so that the answer cannot leave before the last append

    def write(self) -> None:
        units = 0
        for added in self._rest:
            units += added
            if units >= UNITS_PER_SLICE:
                self._slices.start(self._rest, lambda _: self._answer_if_done(), _raise)
                break
        else:
            self._answer_if_done()
        if units > APPEND_UNITS:  # to count the only marker of a small transaction would cost as much as to write it
            self._slices.count(units)

    def _append_each(self, request: WriteTxnMarkersRequest) -> Generator[int, None, None]:
        """Appends one marker with each step, which gives its units of work."""
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                results: list[PartitionResult] = []
                topics.append(TopicResult(name=topic.name, partitions=results))
                for partition in topic.partition_indexes:
                    result = PartitionResult(partition_index=partition)
                    results.append(result)
                    units = self._append(marker, topic.name, result)
                    yield units + self._replicas.take_opened_units()
            self._response.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))

    def _append(self, marker: WritableTxnMarker, topic: str, result: PartitionResult) -> int:
        partition = result.partition_index
        of_groups = topic == GROUP_METADATA_TOPIC
        try:
            replica = self._replicas.leader(topic, partition)
            replica.check_in_sync()  # otherwise this marker would delay the answers of all others
            if of_groups:
                # Offsets that were decided in this turn of the loop belong before the marker that ends them.
                self._groups.host.flush(partition)
            info = replica.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                commit=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        except BrokerError as error:
            result.error_code = error.code
            return REFUSAL_UNITS
        self._awaited += 1

        def committed(error: BrokerError | None) -> None:
            if error is not None:
                result.error_code = error.code
            elif of_groups:
                self._groups.on_marker(partition, marker.producer_id, marker.transaction_result)
            self._answer_if_done()

        replica.when_committed(info.last_offset + 1, committed)
        return APPEND_UNITS + info.cost // COSTS_PER_UNIT

    def _answer_if_done(self) -> None:
        self._awaited -= 1
        if self._awaited == 0:
            self._done(self._response)
