"""EpochState: role, epoch, leader and vote of a member of the quorum (KIP-595). Only this module changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from barnabas.broker.quorum.core.quorum_state import NO_NODE, QuorumState
from barnabas.broker.quorum.core.roles import VALID_PREVIOUS, Role
from barnabas.errors import InvariantViolated
from barnabas.loggers import logger

log = logger("kafka.raft")


class EpochState:
    """Role, epoch, leader and vote of one member: one vote and one leader per epoch, which never goes back."""

    def __init__(
        self, node_id: int, voters: Sequence[int], stored: QuorumState, store: Callable[[QuorumState], None]
    ) -> None:
        self._node_id = node_id
        self._voters = tuple(voters)
        self._store = store
        self.stored = stored  # content of quorum-state
        self.role = Role.UNATTACHED
        self.epoch = stored.leader_epoch  # the highest known epoch
        self.leader_id = NO_NODE  # of that epoch, NO_NODE if unknown
        self.voted_id = stored.voted_id  # candidate of its vote in that epoch, NO_NODE without a vote
        # directory of that candidate if this process cast the vote; else None
        self.voted_directory_id: bytes | None = None

    def has_voted_for(self, candidate_id: int, directory_id: bytes) -> bool:
        """Whether this epoch's vote was for that candidate: if two processes share one id, for the first one."""
        return self.voted_id == candidate_id and self.voted_directory_id in (None, directory_id)

    def become(self, role: Role, epoch: int, leader_id: int, voted_id: int) -> None:
        """Raises InvariantViolated for an invalid transition, a lower epoch, or a second vote or leader; OSError: nothing changed."""
        if role is not self.role and self.role not in VALID_PREVIOUS[role]:
            raise InvariantViolated(f"a member of the quorum cannot become {role.name} from {self.role.name}")
        if epoch < self.epoch:
            raise InvariantViolated(f"the quorum's epoch cannot go back from {self.epoch} to {epoch}")
        if epoch == self.epoch:
            if self.voted_id not in (NO_NODE, voted_id):
                raise InvariantViolated(f"voted for {self.voted_id} in epoch {epoch}, and cannot vote for {voted_id}")
            if self.leader_id not in (NO_NODE, leader_id) and leader_id != NO_NODE:
                raise InvariantViolated(f"epoch {epoch} has the leader {self.leader_id}, and cannot have {leader_id}")
        self._remember(epoch, leader_id, voted_id)
        if epoch > self.epoch:
            self.voted_directory_id = None
        if self.role is Role.LEADER and role is not Role.LEADER:
            log.info("Node no longer leads the metadata quorum: node_id=%d epoch=%d", self._node_id, self.epoch)
        if leader_id not in (NO_NODE, self._node_id) and (epoch, leader_id) != (self.epoch, self.leader_id):
            log.info(
                "Node follows a leader of the metadata quorum: node_id=%d epoch=%d leader=%d",
                self._node_id,
                epoch,
                leader_id,
            )
        self.role, self.epoch, self.leader_id, self.voted_id = role, epoch, leader_id, voted_id

    def _remember(self, epoch: int, leader_id: int, voted_id: int) -> None:
        stored = self.stored
        if leader_id == self._node_id:
            voted_id = NO_NODE  # as in Kafka: a leader resigns its epoch at its next start
        if (stored.leader_epoch, stored.leader_id, stored.voted_id) == (epoch, leader_id, voted_id):
            return
        if self._node_id not in self._voters and stored.leader_epoch == epoch:
            return  # an observer finds its leader again at each start
        voters = () if stored.version else self._voters
        state = QuorumState(epoch, leader_id=leader_id, voted_id=voted_id, voters=voters, version=stored.version)
        self._store(state)
        self.stored = state
