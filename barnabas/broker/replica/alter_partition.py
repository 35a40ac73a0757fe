"""IsrChanges: sends ISR changes to the controller; one AlterPartition carries all proposals of a node in one wake-up (KIP-497, KIP-903)."""

from __future__ import annotations

from itertools import islice
from typing import Final

from barnabas.broker.controller.channel import ControllerChannel
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.replica.core.isr import IsrAnswer, IsrProposal
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    BrokerState,
)

log = logger("kafka.cluster.Partition")

PARTITIONS_PER_REQUEST: Final = 2_000  # the others follow in the next request: a decoder refuses 25,000
RETRY_MS: Final = 50
TIMEOUT_MS: Final = 30_000


class IsrChanges:
    """The ISR proposals of one node; only the newest proposal of a replica is sent, and every proposal is answered."""

    def __init__(self, reactor: Reactor, node_id: int, current: CurrentImage, controller: ControllerChannel) -> None:
        self._reactor = reactor
        self._node_id = node_id
        self._current = current
        self._controller = controller
        self._proposed: dict[Replica, IsrProposal] = {}
        self._asked: dict[Replica, IsrProposal] = {}
        self._former: dict[Replica, int] = {}  # size of the ISR before the proposal
        self._due = False
        # partitions whose ISR became smaller, larger, or was refused by the controller
        self.shrinks = self.expansions = self.failed = 0

    def propose(self, replica: Replica, proposal: IsrProposal) -> None:
        """Together with all others of this wake-up or of the time of the pending request."""
        self._proposed[replica] = proposal
        self._send_soon(0)

    def _send_soon(self, delay_ms: int) -> None:
        if self._due or self._asked or not self._proposed:
            return
        self._due = True
        if delay_ms:
            self._reactor.call_later(delay_ms, self._send)
        else:
            self._reactor.soon(self._send)

    def _send(self) -> None:
        self._due = False
        wanted = {one: proposal for one, proposal in self._proposed.items() if one.in_sync.proposal is proposal}
        asked = dict(islice(wanted.items(), PARTITIONS_PER_REQUEST))
        self._proposed = dict(islice(wanted.items(), PARTITIONS_PER_REQUEST, None))
        own = self._current.image.brokers.get(self._node_id)
        if not asked or own is None:
            return
        self._asked = asked
        self._former = {replica: len(replica.isr) for replica in asked}
        topics: dict[bytes, AlterPartitionRequestTopic] = {}
        for replica, proposal in asked.items():
            topic = topics.get(replica.topic_id)
            if topic is None:
                topic = topics[replica.topic_id] = AlterPartitionRequestTopic(topic_id=replica.topic_id, partitions=[])
            topic.partitions.append(_partition(replica, proposal, own.broker_id, own.epoch))
        request = AlterPartitionRequest(broker_id=own.broker_id, broker_epoch=own.epoch, topics=list(topics.values()))
        self._controller.request(request, self._on_outcome, timeout_ms=TIMEOUT_MS)

    def _on_outcome(self, outcome: AlterPartitionResponse | BrokerError) -> None:
        asked, self._asked = self._asked, {}
        former, self._former = self._former, {}
        failure: BrokerError | None = None
        answers: dict[tuple[bytes, int], IsrAnswer] = {}
        if isinstance(outcome, BrokerError):
            failure = outcome
        elif outcome.error_code:
            failure = BrokerError(ErrorCode(outcome.error_code))
        else:
            answers = {
                (topic.topic_id, one.partition_index): IsrAnswer(
                    one.error_code, one.leader_epoch, one.partition_epoch, tuple(one.isr)
                )
                for topic in outcome.topics
                for one in topic.partitions
            }
        if failure is not None:
            log.warning("Controller could not be asked for ISR changes: partitions=%d error=%s", len(asked), failure)
        self._due = True  # repeated proposals wait a little
        for replica, proposal in asked.items():
            answer = answers.get((replica.topic_id, replica.partition))
            if answer is not None and answer.error_code == ErrorCode.NONE:
                self.expansions += len(answer.isr) > former[replica]
                self.shrinks += len(answer.isr) < former[replica]
            else:
                self.failed += 1
            replica.on_isr_answer(proposal, answer or failure or BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR))
        self._due = False
        again = failure is not None or any(self._proposed.get(one) is proposal for one, proposal in asked.items())
        self._send_soon(RETRY_MS if again else 0)


def _partition(
    replica: Replica, proposal: IsrProposal, node_id: int, node_epoch: int
) -> AlterPartitionRequestPartition:
    return AlterPartitionRequestPartition(
        partition_index=replica.partition,
        leader_epoch=proposal.leader_epoch,
        new_isr=[broker_id for broker_id, _ in proposal.isr],
        new_isr_with_epochs=[
            BrokerState(broker_id=broker_id, broker_epoch=node_epoch if broker_id == node_id else epoch)
            for broker_id, epoch in proposal.isr
        ],
        leader_recovery_state=0,
        partition_epoch=proposal.partition_epoch,
    )
