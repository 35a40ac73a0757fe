"""Handles consumer groups of the classic protocol and FindCoordinator.

FindCoordinator 0–6, JoinGroup 0–9, SyncGroup 0–5, Heartbeat 0–4, LeaveGroup 0–5, DescribeGroups 0–6, ListGroups 0–5,
DeleteGroups 0–2; the offset requests of the same family are in `group_offsets`.

Behaviour: this module checks requests; the shard of the group (`coordinator/group_coordinator.py`) decides them. It
parks JoinGroup and SyncGroup until the group changes state; a parked answer delays only later answers.
FindCoordinator creates a missing state topic and answers when it exists, where Kafka answers
COORDINATOR_NOT_AVAILABLE. If the coordinator has just died, the answer waits for the next one, at most 800 ms
(`failover_purgatory.py`).

Version notes: FindCoordinator v4 batches; JoinGroup v4 makes new members rejoin with the id they are given, v5 static
members, v7 protocol type, v9 skip_assignment; LeaveGroup v3 batches; DescribeGroups v6 GROUP_ID_NOT_FOUND; ListGroups
v4 states, v5 types.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Answer, Call, Computed, Pending, Rest, Table
from barnabas.broker.authorization.permissions import AllowedNames, check_permission, refusal_of
from barnabas.broker.coordinator.groups.effects import At, JoinCall
from barnabas.broker.coordinator.groups.records import AnyRecord
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.groups.views import describe_classic
from barnabas.broker.coordinator.groups.views import list_groups as listed_groups
from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.broker.handlers import group_offsets
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse, refuse_each
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import MEMBER_METADATA_BYTES_MAX, MEMBER_PROTOCOLS_MAX
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.image.image import MetadataImage, PartitionImage

STATE_TOPICS = {0: GROUP_METADATA_TOPIC, 1: TRANSACTION_STATE_TOPIC}  # by key type; 2, share groups, is not served
RESOURCE_TYPES = {0: AclResourceType.GROUP, 1: AclResourceType.TRANSACTIONAL_ID}  # of coordinators, by key type
LOOKED_AT = 1_000  # keys of FindCoordinator, before the answer
LEAVING_AT_ONCE = 1_000  # members of one LeaveGroup: 2 ms


# -- FindCoordinator ---------------------------------------------------------------------------------------------------


def find_coordinator(needs: Needs, call: Call[FindCoordinatorRequest]) -> Answer:
    """Returns the brokers that coordinate groups or transactional ids."""
    topic = STATE_TOPICS.get(call.request.key_type)
    if topic is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"key type {call.request.key_type} is not served")
    described = AllowedNames(call.access, AclOperation.DESCRIBE, RESOURCE_TYPES[call.request.key_type])
    first_keys = _keys(call)[:LOOKED_AT]
    image = needs.current_image.image
    if not image.partition_count(topic):
        if any(key in described for key in first_keys):
            return _created(needs, call, topic, described)
    elif not needs.alone:
        partitions = [_state_partition(image, topic, key) for key in first_keys]
        leaders = {each.leader for each in partitions if each is not None}
        if needs.awaited_leaders.may_be_missing(leaders):
            return needs.awaited_leaders.pending(leaders, lambda: _coordinators(needs, call, topic, described))
    return _coordinators(needs, call, topic, described)


def _created(
    needs: Needs, call: Call[FindCoordinatorRequest], topic: str, described: AllowedNames
) -> Pending[FindCoordinatorResponse]:
    """The answer once the state topic is there: it is created only for clients that may describe one of the keys."""
    pending: Pending[FindCoordinatorResponse] = Pending(blocks=True)

    def created(error: BrokerError | None) -> None:
        if error is not None:
            refusal = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
            pending.resolve(Computed(call, lambda _access: _refuse_find(call, refusal)))
        else:
            pending.resolve(_coordinators(needs, call, topic, described))

    needs.controller.ensure_topic(topic, created)
    return pending


def _keys(call: Call[FindCoordinatorRequest]) -> list[str]:
    return call.request.coordinator_keys if call.version >= 4 else [call.request.key]


def _coordinators(needs: Needs, call: Call[FindCoordinatorRequest], topic: str, described: AllowedNames) -> Computed:
    return Computed(call, partial(_found, call, needs.current_image.image, topic, described))


def _found(
    call: Call[FindCoordinatorRequest], image: MetadataImage, topic: str, described: AllowedNames, access: Access
) -> FindCoordinatorResponse:
    """Returns the answer."""
    request = call.request
    described.ask(access)
    refusal = refusal_of(RESOURCE_TYPES[request.key_type])
    if call.version >= 4:
        return FindCoordinatorResponse(
            coordinators=[
                _coordinator(image, topic, key, call.listener)
                if key in described
                else _no_coordinator(key, BrokerError(refusal.code, ""))  # no message, as in Kafka
                for key in dict.fromkeys(request.coordinator_keys)
            ]
        )
    if request.key not in described:
        raise refusal
    found = _coordinator(image, topic, request.key, call.listener)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or ErrorCode(found.error_code).name,  # "NONE" too, as in Kafka
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(image: MetadataImage, topic: str, key: str, listener: str) -> Coordinator:
    partition = _state_partition(image, topic, key)
    broker = None if partition is None else image.brokers.get(partition.leader)
    address = None if broker is None else broker.endpoint(listener)
    # A broker that shuts down coordinates until its partitions have moved.
    if broker is not None and address is not None and not broker.fenced:
        return Coordinator(key=key, node_id=broker.broker_id, host=address.host, port=address.port, error_message="")
    return _no_coordinator(key, BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE))


def _state_partition(image: MetadataImage, topic: str, key: str) -> PartitionImage | None:
    """The partition that stores the state of a group or transactional id; None if the topic was deleted."""
    partition_count = image.partition_count(topic)
    return image.partition(topic, partition_for(key, partition_count)) if partition_count else None


def _no_coordinator(key: str, error: BrokerError) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message)


def _refuse_find(call: Call[FindCoordinatorRequest], error: BrokerError) -> FindCoordinatorResponse:
    if call.version >= 4:
        found = [_no_coordinator(key, error) for key in call.request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    return FindCoordinatorResponse(error_code=error.code, error_message=error.message, node_id=-1, port=-1)


# -- membership --------------------------------------------------------------------------------------------------------


class _JoinReply:
    """Takes the answer to a JoinGroup (Reply)."""

    __slots__ = ("member_id", "pending", "version")

    def __init__(self, version: int, member_id: str) -> None:
        self.pending: Pending[JoinGroupResponse] = Pending()
        self.version = version
        self.member_id = member_id

    def send(self, response: JoinGroupResponse) -> None:
        if response.protocol_name is None and self.version < 7:
            response.protocol_name = ""  # not nullable in these versions
        self.pending.resolve(response)

    def refuse(self, code: ErrorCode) -> None:
        self.send(JoinGroupResponse(error_code=code, member_id=self.member_id, protocol_name=None))


class _SyncReply:
    """Takes the answer to a SyncGroup (Reply)."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: Pending[SyncGroupResponse] = Pending()

    def send(self, response: SyncGroupResponse) -> None:
        self.pending.resolve(response)

    def refuse(self, code: ErrorCode) -> None:
        self.pending.resolve(SyncGroupResponse(error_code=code))


def _check_group_id(group_id: str) -> None:
    """Refuses an empty group id; only offsets may have one, for old clients."""
    if not group_id:
        raise BrokerError(ErrorCode.INVALID_GROUP_ID)


def join_group(needs: Needs, call: Call[JoinGroupRequest]) -> Pending[JoinGroupResponse]:
    """Joins or rejoins a group; the answer is sent when the rebalance is complete, or at once with an error."""
    request = call.request
    settings = needs.groups.settings
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    _check_group_id(request.group_id)
    if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
        raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
    if len(request.protocols) > MEMBER_PROTOCOLS_MAX:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"a member names at most {MEMBER_PROTOCOLS_MAX} protocols")
    if sum(len(each.metadata) for each in request.protocols) > MEMBER_METADATA_BYTES_MAX:
        text = f"the metadata of a member's protocols has at most {MEMBER_METADATA_BYTES_MAX} bytes"
        raise BrokerError(ErrorCode.INVALID_REQUEST, text)
    reply = _JoinReply(call.version, request.member_id)
    fresh_id = str(uuid.UUID(bytes=needs.reactor.rng.uuid()))
    needs.groups.join(JoinCall(request, call.version, call.client_id or "", f"/{call.client_host}", fresh_id, reply))
    return reply.pending


def sync_group(needs: Needs, call: Call[SyncGroupRequest]) -> Pending[SyncGroupResponse]:
    """Sends the leader's assignments, or returns the member's assignment of a generation."""
    request = call.request
    if call.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)  # before the permission, as in Kafka
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    _check_group_id(request.group_id)
    reply = _SyncReply()
    needs.groups.sync(request, reply)
    return reply.pending


def heartbeat(needs: Needs, call: Call[HeartbeatRequest]) -> HeartbeatResponse:
    """Extends a member's session and reports rebalances."""
    request = call.request
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    _check_group_id(request.group_id)
    try:
        needs.groups.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    except BrokerError as error:
        if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # no session expires while the group loads
            raise
    return HeartbeatResponse()


def leave_group(needs: Needs, call: Call[LeaveGroupRequest]) -> Pending[LeaveGroupResponse]:
    """Removes members; large requests take several turns of the loop."""
    request = call.request
    check_permission(call.access, AclOperation.READ, AclResourceType.GROUP, request.group_id)
    _check_group_id(request.group_id)
    if call.version < 3:
        request.members = [MemberIdentity(member_id=request.member_id)]
    leaving = _Leaving(needs, request, first_only=call.version < 3)
    leaving.leave_from(0)
    return leaving.pending


class _Leaving:
    """One LeaveGroup request, LEAVING_AT_ONCE members a turn."""

    def __init__(self, needs: Needs, request: LeaveGroupRequest, *, first_only: bool) -> None:
        self.pending: Pending[LeaveGroupResponse] = Pending()
        self._needs = needs
        self._request = request
        self._first_only = first_only
        self._answered: list[MemberResponse] = []

    def leave_from(self, start: int) -> None:
        """Removes the members from this index on."""
        self._needs.groups.leave(self._part(start), lambda outcome: self._left(start, outcome))

    def _part(self, start: int) -> LeaveGroupRequest:
        members = self._request.members[start : start + LEAVING_AT_ONCE]
        return LeaveGroupRequest(group_id=self._request.group_id, members=members)

    def _left(self, start: int, outcome: LeaveGroupResponse | BrokerError) -> None:
        response = _refuse_leave(self._part(start), outcome) if isinstance(outcome, BrokerError) else outcome
        following = start + LEAVING_AT_ONCE
        if response.error_code == ErrorCode.NONE:
            self._answered.extend(response.members)
            if following < len(self._request.members):
                self._needs.reactor.call_later(0, lambda: self.leave_from(following))
                return
            response.members = self._answered
        if self._first_only and response.members:
            response.error_code = response.members[0].error_code
        self.pending.resolve(response)


def _refuse_leave(request: LeaveGroupRequest, error: BrokerError) -> LeaveGroupResponse:
    if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
        return LeaveGroupResponse(error_code=error.code)
    # The group does not exist: all its members are unknown.
    members = [
        MemberResponse(member_id=m.member_id, group_instance_id=m.group_instance_id, error_code=error.code)
        for m in request.members
    ]
    return LeaveGroupResponse(members=members)


# -- describing, listing and deleting ----------------------------------------------------------------------------------


def describe_groups(needs: Needs, call: Call[DescribeGroupsRequest]) -> Work:
    """Describes groups: state and members."""
    groups = []
    for group_id in dict.fromkeys(call.request.groups):
        groups.append(_describe(needs, call, group_id))
        yield 1 + len(groups[-1].members)
    return DescribeGroupsResponse(groups=groups)


def _describe(needs: Needs, call: Call[DescribeGroupsRequest], group_id: str) -> DescribedGroup:
    try:
        check_permission(call.access, AclOperation.DESCRIBE, AclResourceType.GROUP, group_id)
        group = describe_classic(needs.groups.shard_for(group_id), group_id)
    except BrokerError as error:
        return _not_described(call, group_id, error)
    if call.request.include_authorized_operations:
        group.authorized_operations = call.access.operations(AclResourceType.GROUP, group_id)
    return group


def _not_described(call: Call[DescribeGroupsRequest], group_id: str, error: BrokerError) -> DescribedGroup:
    if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    dead = DescribedGroup(group_id=group_id, group_state="Dead")
    if call.version >= 6:  # KIP-1043: before, an unknown group was answered as dead
        dead.error_code, dead.error_message = error.code, error.message
    elif call.request.include_authorized_operations:
        dead.authorized_operations = call.access.operations(AclResourceType.GROUP, group_id)
    return dead


def list_groups(needs: Needs, call: Call[ListGroupsRequest]) -> Work:
    """Lists the groups that this node coordinates."""
    if needs.groups.host.is_loading:
        raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = frozenset(map(str.lower, call.request.states_filter))
    types = frozenset(map(str.lower, call.request.types_filter))
    access, groups = call.access, []
    everything = access.unrestricted or access.allows(AclOperation.DESCRIBE, AclResourceType.CLUSTER, log=False)
    for _, shard in needs.groups.host.active_shards():
        found = listed_groups(shard, states, types)
        yield 1 + len(found)
        if everything:
            groups += found
            continue
        for group in found:
            if access.allows(AclOperation.DESCRIBE, AclResourceType.GROUP, group.group_id, log=False):
                groups.append(group)
            yield 1
    return ListGroupsResponse(groups=groups)


def delete_groups(needs: Needs, call: Call[DeleteGroupsRequest]) -> Computed:
    """Deletes groups without members, with their offsets; answers when all deletions are committed."""
    return Computed(call, partial(_sorted_by_shard, needs, call, needs.current_image.image))


def _sorted_by_shard(
    needs: Needs, call: Call[DeleteGroupsRequest], image: MetadataImage, access: Access
) -> DeleteGroupsResponse | Rest:
    count = image.partition_count(GROUP_METADATA_TOPIC)
    results = {group_id: DeletableGroupResult(group_id=group_id) for group_id in call.request.groups_names}
    by_shard: dict[int, list[DeletableGroupResult]] = {}
    for group_id, result in results.items():
        if not access.allows(AclOperation.DELETE, AclResourceType.GROUP, group_id):
            result.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif not count:
            result.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            by_shard.setdefault(partition_for(group_id, count), []).append(result)
    response = DeleteGroupsResponse(results=list(results.values()))
    return partial(_delete_groups, needs, response, list(by_shard.values())) if by_shard else response


def _delete_groups(
    needs: Needs, response: DeleteGroupsResponse, shards: list[list[DeletableGroupResult]]
) -> Pending[DeleteGroupsResponse]:
    """A decision for all groups of one shard, as in Kafka; the next shard follows in a later turn."""
    pending: Pending[DeleteGroupsResponse] = Pending()
    _delete_in_shard(needs, response, shards, pending)
    return pending


def _delete_in_shard(
    needs: Needs,
    response: DeleteGroupsResponse,
    shards: list[list[DeletableGroupResult]],
    pending: Pending[DeleteGroupsResponse],
) -> None:
    results = shards.pop()

    def deleted(outcome: BrokerError | None) -> None:
        if outcome is not None:
            for result in results:
                result.error_code = outcome.code
        if shards:
            needs.reactor.call_later(0, partial(_delete_in_shard, needs, response, shards, pending))
        else:
            pending.resolve(response)

    needs.groups.write(results[0].group_id, partial(_decide_deletion, results), deleted)


def _decide_deletion(results: list[DeletableGroupResult], shard: GroupShard, _at: At) -> Decision[None, AnyRecord]:
    records: list[AnyRecord] = []
    for result in results:
        if not shard.has_group(result.group_id):  # a request may name 100,000 of them
            result.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            continue
        try:
            records += shard.delete_group(result.group_id).records
        except BrokerError as error:
            result.error_code = error.code
    return Decision(None, records)


# -- refusals ----------------------------------------------------------------------------------------------------------


def _refuse_join(call: Call[JoinGroupRequest], error: BrokerError) -> JoinGroupResponse:
    reply = _JoinReply(call.version, call.request.member_id)
    reply.refuse(error.code)
    return cast("JoinGroupResponse", reply.pending.response)


def _refuse_describe(call: Call[DescribeGroupsRequest], error: BrokerError) -> DescribeGroupsResponse:
    groups = [_not_described(call, group_id, error) for group_id in call.request.groups]
    return DescribeGroupsResponse(groups=groups)


HANDLERS: Final[Table] = {
    FindCoordinatorRequest: (find_coordinator, _refuse_find),
    JoinGroupRequest: (join_group, _refuse_join),
    SyncGroupRequest: (sync_group, refuse),
    HeartbeatRequest: (heartbeat, refuse),
    LeaveGroupRequest: (leave_group, lambda call, error: _refuse_leave(call.request, error)),
    DescribeGroupsRequest: (describe_groups, _refuse_describe),
    ListGroupsRequest: (list_groups, refuse),
    DeleteGroupsRequest: (delete_groups, refuse_each),
    **group_offsets.HANDLERS,
}
