"""Handles consumer groups whose partitions the coordinator assigns (KIP-848).

ConsumerGroupHeartbeat 0–1, ConsumerGroupDescribe 0–1.

Behaviour: this module checks a heartbeat; the shard of the group (`coordinator/groups/consumer/protocol.py`) decides
it. The answer is sent once the change is committed, or at once if nothing changed. No heartbeat is parked: a member
learns of changes at its next heartbeat. Both requests answer UNSUPPORTED_VERSION below group.version 1, and if
group.coordinator.rebalance.protocols lacks consumer.

Version notes: ConsumerGroupHeartbeat v1: members choose their id (KIP-1082), regular expressions;
ConsumerGroupDescribe v1 names the protocol of each member (KIP-1099).

Deviations: regular expressions use the syntax of `broker/patterns` (most of RE2's), and are resolved again after 1 s,
in Kafka after 10 s.
"""

from __future__ import annotations

import uuid
from itertools import chain
from typing import Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Pending, Table
from barnabas.broker.authorization.permissions import AllowedNames, check_permission, refusal_of
from barnabas.broker.coordinator.groups.consumer.heartbeat_request import check_heartbeat
from barnabas.broker.coordinator.groups.effects import HeartbeatCall
from barnabas.broker.coordinator.groups.views import describe_consumers
from barnabas.broker.handlers.needs import Needs
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import SUBSCRIPTION_NAMES_MAX
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from barnabas.work import Steps, Work

HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


class _HeartbeatReply:
    """Takes the answer to a heartbeat (Reply)."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: Pending[ConsumerGroupHeartbeatResponse] = Pending()

    def send(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.pending.resolve(response)

    def refuse(self, code: ErrorCode) -> None:
        self.pending.resolve(ConsumerGroupHeartbeatResponse(error_code=code))


def consumer_group_heartbeat(
    needs: Needs, call: Call[ConsumerGroupHeartbeatRequest]
) -> Pending[ConsumerGroupHeartbeatResponse]:
    """Joins or leaves a group, or keeps the membership; answers the assignment."""
    _check_served(needs)
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, call.request.group_id)
    subscribed = call.request.subscribed_topic_names
    if (
        subscribed and len(subscribed) <= SUBSCRIPTION_NAMES_MAX and not call.access.unrestricted
    ):  # more are refused below
        described = AllowedNames(call.access, AclOperation.DESCRIBE, AclResourceType.TOPIC)
        hidden = [name for name in subscribed if name not in described]  # asks about all of them, for the audit log
        if hidden:
            raise refusal_of(AclResourceType.TOPIC)
    check_heartbeat(call.request, call.version, needs.config.get_list("group.consumer.assignors"))
    reply = _HeartbeatReply()
    fresh_id = str(uuid.UUID(bytes=needs.reactor.rng.uuid())) if not call.request.member_id else ""
    needs.groups.consumer_heartbeat(
        HeartbeatCall(call.request, call.client_id or "", f"/{call.client_host}", fresh_id, reply, call.access)
    )
    return reply.pending


def consumer_group_describe(needs: Needs, call: Call[ConsumerGroupDescribeRequest]) -> Work:
    """Describes groups: state, epochs and members."""
    _check_served(needs)
    groups = []
    for group_id in dict.fromkeys(call.request.group_ids):
        groups.append(_described(needs, call, group_id))
        yield 1 + len(groups[-1].members)
    if not call.access.unrestricted:
        groups = yield from _hidden(groups, call.access)
    return ConsumerGroupDescribeResponse(groups=groups)


def _check_served(needs: Needs) -> None:
    """Raises UNSUPPORTED_VERSION unless the cluster has finalized the feature and this broker's configuration names the protocol."""
    protocols = needs.config.get_list("group.coordinator.rebalance.protocols")
    if "consumer" not in protocols or needs.current_image.image.feature("group.version") < 1:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)


def _described(needs: Needs, call: Call[ConsumerGroupDescribeRequest], group_id: str) -> ConsumerGroupDescribedGroup:
    try:
        check_permission(call.access, AclOperation.DESCRIBE, AclResourceType.GROUP, group_id)
        if not group_id:
            raise BrokerError(ErrorCode.INVALID_GROUP_ID)
        group = describe_consumers(needs.groups.shard_for(group_id), group_id)
    except BrokerError as error:
        return _not_described(group_id, error)
    if call.request.include_authorized_operations:
        group.authorized_operations = call.access.operations(AclResourceType.GROUP, group_id)
    return group


def _hidden(groups: list[ConsumerGroupDescribedGroup], access: Access) -> Steps[list[ConsumerGroupDescribedGroup]]:
    """Returns the groups, without those that name a topic which the client may not describe."""
    described = AllowedNames(access, AclOperation.DESCRIBE, AclResourceType.TOPIC)
    found = []
    for group in groups:
        shown = True
        for member in group.members:
            for topic in chain(member.assignment.topic_partitions, member.target_assignment.topic_partitions):
                shown = topic.topic_name in described and shown
                yield 1
        found.append(group if shown else _with_hidden_topics(group.group_id))
        yield 1
    return found


def _with_hidden_topics(group_id: str) -> ConsumerGroupDescribedGroup:
    return ConsumerGroupDescribedGroup(
        group_id=group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=HIDDEN_TOPICS
    )


def _not_described(group_id: str, error: BrokerError) -> ConsumerGroupDescribedGroup:
    message = error.message if error.code is ErrorCode.GROUP_ID_NOT_FOUND else None
    return ConsumerGroupDescribedGroup(group_id=group_id, error_code=error.code, error_message=message)


def _refuse_describe(call: Call[ConsumerGroupDescribeRequest], error: BrokerError) -> ConsumerGroupDescribeResponse:
    groups = [_not_described(name, error) for name in call.request.group_ids]
    return ConsumerGroupDescribeResponse(groups=groups)


def _refuse_heartbeat(call: Call[ConsumerGroupHeartbeatRequest], error: BrokerError) -> ConsumerGroupHeartbeatResponse:
    known = error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_ASSIGNOR)
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message if known else None)


HANDLERS: Final[Table] = {
    ConsumerGroupHeartbeatRequest: (consumer_group_heartbeat, _refuse_heartbeat),
    ConsumerGroupDescribeRequest: (consumer_group_describe, _refuse_describe),
}
