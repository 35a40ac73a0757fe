"""Roles of a member of the metadata quorum with their valid transitions, and its timeouts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig


class Role(Enum):
    """Role of a member; an observer (not a voter) is only UNATTACHED or FOLLOWER.

    UNATTACHED knows an epoch and no leader; PROSPECTIVE requests pre-votes without raising the epoch (KIP-996); CANDIDATE requests votes in
    a new one; RESIGNED led the epoch, so it does not vote in it.
    """

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


# A higher epoch makes every role UNATTACHED; a leader with a higher epoch makes it FOLLOWER.
VALID_PREVIOUS: Final[dict[Role, frozenset[Role]]] = {
    Role.UNATTACHED: frozenset(Role),
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.CANDIDATE}),
    Role.CANDIDATE: frozenset({Role.PROSPECTIVE}),
    Role.LEADER: frozenset({Role.CANDIDATE}),
    Role.FOLLOWER: frozenset(Role),
    Role.RESIGNED: frozenset({Role.LEADER}),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts in milliseconds, from Kafka's keys where one is named."""

    fetch_timeout_ms: int = 2_000  # controller.quorum.fetch.timeout.ms: silence of the leader before a pre-vote
    election_timeout_ms: int = 1_000  # controller.quorum.election.timeout.ms: wait for votes
    election_backoff_max_ms: int = 1_000  # controller.quorum.election.backoff.max.ms: random wait after a lost election
    request_timeout_ms: int = 2_000  # controller.quorum.request.timeout.ms
    retry_backoff_ms: int = 20  # controller.quorum.retry.backoff.ms
    fetch_wait_ms: int = 500  # limit of a long-polled fetch at the leader
    # A lost fetch connection to the leader starts a pre-vote after a random time between these: a killed process closes
    # its connections at once, and waiting for the fetch timeout would cost two seconds.
    suspicion_min_ms: int = 50
    suspicion_max_ms: int = 200

    @classmethod
    def from_config(cls, config: BrokerConfig) -> Timing:
        return cls(
            fetch_timeout_ms=config.get_int("controller.quorum.fetch.timeout.ms"),
            election_timeout_ms=config.get_int("controller.quorum.election.timeout.ms"),
            election_backoff_max_ms=config.get_int("controller.quorum.election.backoff.max.ms"),
            request_timeout_ms=config.get_int("controller.quorum.request.timeout.ms"),
            retry_backoff_ms=config.get_int("controller.quorum.retry.backoff.ms"),
        )

    @property
    def check_quorum_ms(self) -> int:
        """A leader resigns if no majority has fetched for this time (KIP-595)."""
        return self.fetch_timeout_ms * 3 // 2
