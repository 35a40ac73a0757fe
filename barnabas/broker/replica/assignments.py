"""DirectoryAssignments: reports the log directory of a replica if it differs from the metadata log (KIP-858)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from barnabas.broker.controller.channel import ControllerChannel
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError
from barnabas.loggers import logger
from barnabas.protocol.messages.cluster import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestTopic,
    AssignReplicasToDirsResponse,
)
from barnabas.protocol.messages.shared import PartitionIndex

log = logger("kafka.log.LogManager")

ASSIGNMENTS_MAX: Final = 2_250  # in one request, as in Kafka
RETRY_MS: Final = 500
TIMEOUT_MS: Final = 10_000


class DirectoryAssignments:
    """Reports that the controller has not yet acknowledged."""

    def __init__(
        self, reactor: Reactor, node_id: int, controller: ControllerChannel, broker_epoch: Callable[[], int]
    ) -> None:
        self._reactor = reactor
        self._node_id = node_id
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._unassigned: dict[tuple[bytes, int], bytes] = {}  # directory id by topic id and partition
        self._due = False  # a request is pending, or will be sent soon

    def assign(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        self._unassigned[topic_id, partition] = directory_id
        if not self._due:
            self._due = True
            self._reactor.soon(self._send)

    def _send(self) -> None:
        sent = dict(list(self._unassigned.items())[:ASSIGNMENTS_MAX])
        directories: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, partition), directory_id in sent.items():
            directories.setdefault(directory_id, {}).setdefault(topic_id, []).append(partition)
        request = AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                AssignReplicasToDirsRequestDirectory(
                    id=directory_id,
                    topics=[
                        AssignReplicasToDirsRequestTopic(
                            topic_id=topic_id,
                            partitions=[PartitionIndex(partition_index=each) for each in numbers],
                        )
                        for topic_id, numbers in topics.items()
                    ],
                )
                for directory_id, topics in directories.items()
            ],
        )
        self._controller.request(request, lambda answer: self._on_answer(sent, answer), timeout_ms=TIMEOUT_MS)

    def _on_answer(
        self, sent: dict[tuple[bytes, int], bytes], answer: AssignReplicasToDirsResponse | BrokerError
    ) -> None:
        code = answer.code if isinstance(answer, BrokerError) else answer.error_code
        if code:
            log.debug("Directories of replicas are not assigned yet: replicas=%d error=%s", len(sent), code)
            self._reactor.call_later(RETRY_MS, self._send)
            return
        # A refused one is deleted, or reassigned to another broker.
        for key, directory_id in sent.items():
            if self._unassigned.get(key) == directory_id:
                del self._unassigned[key]
        self._due = bool(self._unassigned)
        if self._due:
            self._reactor.soon(self._send)
