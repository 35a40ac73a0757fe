"""Handles CreateTopics (19, versions 2 to 7), DeleteTopics (20, 1 to 6), CreatePartitions (37, 0 to 3), ElectLeaders (43, 0 to 2) and
UpdateFeatures (57, 0 to 2). `configs`, `delete_records` and `log_dirs` belong to the same family.

Behaviour: the controller decides metadata changes. The answer is sent once this node's own image has the change. Until then the request
holds the later requests of its connection, as topic creation by Metadata does.

Version notes: CreateTopics v4 accepts −1 for the broker's defaults, v5 returns the configs, v7 the id; DeleteTopics v6 deletes by
id; ElectLeaders v1 adds unclean elections; UpdateFeatures v1 adds upgrade types and validate_only, v2 returns one error for the
whole request, because features change together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Answer, Call, Computed, Done, Pending, Refuse, Rest, Table
from barnabas.broker.handlers import configs, delete_records, log_dirs
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse, refuse_each
from barnabas.broker.quotas.mutations import MutatingClient
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    ElectLeadersRequest,
    UpdateFeaturesRequest,
)
from barnabas.protocol.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.controller.channel import ControllerChannel

ELEMENTS_OF_RESULT: Final = 8  # of an answer, as its encoding takes
_LISTS: Final = ("topics", "results", "filter_results")


Ask = Callable[[Done[Message]], None]  # sends a request to the controller


def answered_later(call: Call[Message], ask: Ask, refuse: Refuse) -> Pending[Message]:
    """Asks the controller; `refuse` makes the response if it refuses the whole request."""
    pending: Pending[Message] = Pending(blocks=True)

    def done(answer: Message | BrokerError) -> None:
        pending.resolve(
            Computed(call, lambda _access: refuse(call, answer))
            if isinstance(answer, BrokerError)
            else _to_encode(call, answer)
        )

    ask(done)
    return pending


def forwarded(controller: ControllerChannel, call: Call[Message], refuse: Refuse) -> Pending[Message]:
    """Asks the controller the request itself."""
    return answered_later(call, lambda done: controller.request(call.request, done, access=call.access), refuse)


def _to_encode(call: Call[Message], answer: Message) -> Message | Computed:
    """An answer with many results is encoded in the worker thread: CreateTopics returns 30 settings for each, DeleteAcls many ACLs."""
    for name in _LISTS:
        results = getattr(answer, name, ())
        elements = sum(ELEMENTS_OF_RESULT + len(getattr(each, "matching_acls", ())) for each in results)
        if elements:
            return Computed(call, lambda _access: answer, elements)
    return answer


def answered_in_time(call: Call[Any], ask: Ask, refuse: Refuse) -> Answer:
    """As `answered_later`, but refuses a request whose `timeout_ms` is 0 or less: it begins nothing."""
    if call.request.timeout_ms <= 0:
        raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)
    return answered_later(call, ask, refuse)


def mutating_client(call: Call[Message]) -> MutatingClient:
    """The client of a request that creates or deletes partitions, for its quota."""
    return MutatingClient(call.access.principal.name, call.client_id or "", call.api_key, call.version)


def create_topics(needs: Needs, call: Call[CreateTopicsRequest]) -> Answer:
    """Creates the named topics."""
    return answered_in_time(
        call,
        lambda done: needs.controller.create_topics(
            call.request, done, access=call.access, client=mutating_client(call)
        ),
        _refuse_topics,
    )


def delete_topics(needs: Needs, call: Call[DeleteTopicsRequest]) -> Computed:
    """Deletes topics by name or id."""
    return Computed(call, partial(_delete_topics, needs, call))


def _delete_topics(needs: Needs, call: Call[DeleteTopicsRequest], _access: Access) -> Rest:
    request = DeleteTopicsRequest(
        topics=_states_to_delete(call), topic_names=call.request.topic_names, timeout_ms=call.request.timeout_ms
    )
    return lambda: answered_in_time(
        call,
        lambda done: needs.controller.request(request, done, access=call.access, client=mutating_client(call)),
        _refuse_delete_topics,
    )


def _states_to_delete(call: Call[DeleteTopicsRequest]) -> list[DeleteTopicState]:
    if call.version >= 6:
        return call.request.topics
    return [DeleteTopicState(name=name) for name in call.request.topic_names]


def create_partitions(needs: Needs, call: Call[CreatePartitionsRequest]) -> Answer:
    """Adds partitions to existing topics."""
    return answered_in_time(
        call,
        lambda done: needs.controller.create_partitions(
            call.request, done, access=call.access, client=mutating_client(call)
        ),
        _refuse_topics,
    )


def elect_leaders(needs: Needs, call: Call[ElectLeadersRequest]) -> Answer:
    """Elects preferred or unclean leaders (KIP-183, KIP-460)."""
    timeout_ms = call.request.timeout_ms
    return answered_in_time(
        call,
        lambda done: needs.controller.request(call.request, done, timeout_ms=timeout_ms, access=call.access),
        refuse_each,
    )


def update_features(needs: Needs, call: Call[UpdateFeaturesRequest]) -> Pending[Message]:
    """Changes finalized feature levels of the cluster (KIP-584). Ignores `timeout_ms`, as Kafka does."""
    return forwarded(needs.controller, call, refuse)


def _refuse_topics(call: Call[CreateTopicsRequest] | Call[CreatePartitionsRequest], error: BrokerError) -> Message:
    """One error for each topic, also for one that the request names twice."""
    return refuse_each(call, error, {each.name: each for each in call.request.topics}.values())


def _refuse_delete_topics(call: Call[DeleteTopicsRequest], error: BrokerError) -> DeleteTopicsResponse:
    code = error.code
    if code == ErrorCode.TOPIC_DELETION_DISABLED and call.version < 3:
        code = ErrorCode.INVALID_REQUEST  # v3 added a more precise error code
    responses = [
        DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=code, error_message=error.message)
        for state in _states_to_delete(call)
    ]
    return DeleteTopicsResponse(responses=responses)


HANDLERS: Final[Table] = {
    CreateTopicsRequest: (create_topics, _refuse_topics),
    DeleteTopicsRequest: (delete_topics, _refuse_delete_topics),
    CreatePartitionsRequest: (create_partitions, _refuse_topics),
    ElectLeadersRequest: (elect_leaders, refuse_each),
    UpdateFeaturesRequest: (update_features, refuse),
    **configs.HANDLERS,
    **delete_records.HANDLERS,
    **log_dirs.HANDLERS,
}
