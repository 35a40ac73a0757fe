"""Input and output of decisions about groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from barnabas.broker.api.access import FULL_ACCESS, Access
from barnabas.broker.coordinator.groups.records import AnyRecord
from barnabas.broker.coordinator.host.decision import Decision
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse

DeadlineKey = tuple[str, str, str]
"""Kind, group id, and member id or "". Kinds: "session", "rebalance", "join", "sync"."""


class Responder(Protocol):
    """Receiver of the answer to a request of a member. Cores only keep it; the shell of the shards calls it.

    Both methods do nothing after the first call of either.
    """

    def send(self, response: Any) -> None:
        """Sends the response."""
        ...

    def refuse(self, code: ErrorCode) -> None:
        """Sends a response with an error code alone."""
        ...


class At(NamedTuple):
    """Time of a decision in ms: the wall clock for records, the monotonic clock for deadlines."""

    now_ms: int
    monotonic_ms: int


class MemberAnswer(NamedTuple):
    """A response and its receiver. It is sent when the records of its decision are committed."""

    reply: Responder
    response: JoinGroupResponse | SyncGroupResponse | ConsumerGroupHeartbeatResponse


class JoinCall(NamedTuple):
    """A JoinGroup request and its sender.

    Attributes:
        client_host: with a leading slash, as Kafka stores it ("/127.0.0.1").
        fresh_id: text of a random UUID, used if the coordinator chooses the member id.
    """

    request: JoinGroupRequest
    version: int
    client_id: str
    client_host: str
    fresh_id: str
    reply: Responder

    @property
    def rebalance_timeout_ms(self) -> int:
        """The member's rebalance timeout; its session timeout for JoinGroup 0, which has no rebalance timeout."""
        request = self.request
        return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


class HeartbeatCall(NamedTuple):
    """A ConsumerGroupHeartbeat request and its sender; attributes as in JoinCall."""

    request: ConsumerGroupHeartbeatRequest
    client_id: str
    client_host: str
    fresh_id: str
    reply: Responder
    access: Access = FULL_ACCESS  # hides topics that a pattern matches


class Conversion(NamedTuple):
    """A decision converted a group to the other protocol.

    Attributes:
        rebalances: the group is a classic one that must rebalance, because members were removed.
    """

    group_id: str
    rebalances: bool


@dataclass(slots=True)
class Effects:
    """Results of one decision about groups.

    Attributes:
        conversions: `GroupShard.start_converted` follows when their records are staged.
    """

    answers: list[MemberAnswer] = field(default_factory=list)
    records: list[AnyRecord] = field(default_factory=list)
    conversions: list[Conversion] = field(default_factory=list)

    def decision(self) -> GroupDecision:
        """Returns these results as the answer of a decision."""
        return Decision(self, self.records)

    def refuse_join(self, reply: Responder, code: ErrorCode, member_id: str) -> None:
        """Answers a JoinGroup with an error."""
        response = JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None)
        self.answers.append(MemberAnswer(reply, response))

    def refuse_sync(self, reply: Responder, code: ErrorCode) -> None:
        """Answers a SyncGroup with an error."""
        self.answers.append(MemberAnswer(reply, SyncGroupResponse(error_code=code)))


GroupDecision = Decision[Effects, AnyRecord]
"""A decision about members of groups; its answer is sent to several receivers."""
