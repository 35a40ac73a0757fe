"""Transaction markers of led partitions: WriteTxnMarkers (KIP-98, KIP-1228)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.slices import COSTS_PER_UNIT, Slices
from barnabas.errors import BrokerError
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from barnabas.work import Work

APPEND_UNITS: Final = 10  # of one marker: 25 microseconds, or half a millisecond if its files must be opened first


def _nothing(_: None) -> None:
    pass


def _raise(error: BaseException) -> None:
    """A bug: `write_in_slices` answers every error."""
    raise error


class MarkerWriter:
    """Writes markers. NONE means the marker is below the high watermark; a group learns of the outcome only then."""

    def __init__(self, slices: Slices, replicas: Replicas, groups: GroupCoordinator) -> None:
        self._slices = slices
        self._replicas = replicas
        self._groups = groups

    def write(self, request: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]) -> None:
        """Appends all markers, many in slices; answers when they are committed, maybe within this call."""
        self._slices.run(self.write_in_slices(request, done), _nothing, _raise)

    def write_in_slices(self, request: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]) -> Work:
        return _Writing(self._replicas, self._groups, done).write(request)


class _Writing:
    """One request: the answers so far, and the number of awaited commits."""

    __slots__ = ("_awaited", "_done", "_groups", "_replicas", "_response", "_roll_cost")

    def __init__(
        self, replicas: Replicas, groups: GroupCoordinator, done: Callable[[WriteTxnMarkersResponse], None]
    ) -> None:
        self._replicas = replicas
        self._groups = groups
        self._done = done
        self._response = WriteTxnMarkersResponse()
        self._roll_cost = 0  # of the last marker, if it began a segment
        self._awaited = 1  # 1 for the writing itself, so that the answer cannot leave before the last append

    def write(self, request: WriteTxnMarkersRequest) -> Work:
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                results = []
                for partition in topic.partition_indexes:
                    results.append(self._append(marker, topic.name, partition))
                    units = (2 if results[-1].error_code else APPEND_UNITS) + self._replicas.take_opened_units()
                    yield units + self._roll_cost // COSTS_PER_UNIT
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
            self._response.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        self._answer_if_done()

    def _append(self, marker: WritableTxnMarker, topic: str, partition: int) -> WritableTxnMarkerPartitionResult:
        result = WritableTxnMarkerPartitionResult(partition_index=partition)
        self._roll_cost = 0
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
            return result
        self._awaited += 1
        self._roll_cost = info.cost

        def committed(error: BrokerError | None) -> None:
            if error is not None:
                result.error_code = error.code
            elif of_groups:
                self._groups.on_marker(partition, marker.producer_id, marker.transaction_result)
            self._answer_if_done()

        replica.when_committed(info.last_offset + 1, committed)
        return result

    def _answer_if_done(self) -> None:
        self._awaited -= 1
        if self._awaited == 0:
            self._done(self._response)
