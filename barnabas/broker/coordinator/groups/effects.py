"""Input and output of group decisions."""

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
    """Receiver of the answer to a member's request, called by the shell; only the first call has an effect."""

    def send(self, response: Any) -> None: ...

    def refuse(self, code: ErrorCode) -> None: ...


class At(NamedTuple):
    """Time of a decision in ms: wall clock for records, monotonic clock for deadlines."""

    now_ms: int
    monotonic_ms: int


class MemberAnswer(NamedTuple):
    """A response and its receiver; sent when the records of its decision are committed."""

    reply: Responder
    response: JoinGroupResponse | SyncGroupResponse | ConsumerGroupHeartbeatResponse


class JoinCall(NamedTuple):
    """A JoinGroup request and its sender."""

    request: JoinGroupRequest
    version: int
    client_id: str
    client_host: str  # with a leading slash, as Kafka stores it ("/127.0.0.1")
    fresh_id: str  # text of a random UUID, used if the coordinator chooses the member id
    reply: Responder

    @property
    def rebalance_timeout_ms(self) -> int:
        """The session timeout for JoinGroup 0, which has no rebalance timeout."""
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
    """A decision converted a group to the other protocol."""

    group_id: str
    rebalances: bool  # a classic group that must rebalance, because members were removed


@dataclass(slots=True)
class Effects:
    """Results of one group decision."""

    answers: list[MemberAnswer] = field(default_factory=list)
    records: list[AnyRecord] = field(default_factory=list)
    # `GroupShard.start_converted` follows when their records are staged
    conversions: list[Conversion] = field(default_factory=list)

    def decision(self) -> GroupDecision:
        return Decision(self, self.records)

    def refuse_join(self, reply: Responder, code: ErrorCode, member_id: str) -> None:
        response = JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None)
        self.answers.append(MemberAnswer(reply, response))

    def refuse_sync(self, reply: Responder, code: ErrorCode) -> None:
        self.answers.append(MemberAnswer(reply, SyncGroupResponse(error_code=code)))


GroupDecision = Decision[Effects, AnyRecord]
"""A decision about members of groups; its answer is sent to several receivers."""
