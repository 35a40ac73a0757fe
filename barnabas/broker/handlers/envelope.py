"""Handles Envelope (58), version 0, on the controller listener: a client's request that a broker forwards (KIP-590).

Behaviour: the broker needs CLUSTER_ACTION of the cluster. The request inside is then handled as if the client itself had sent it to this
listener, with its principal and address: the handler of its API asks for the client's permissions. If this node is not the active
controller, the envelope is answered NOT_CONTROLLER, and the broker sends it to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import GeneratorType
from typing import Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import (
    Answer,
    AnyPending,
    Call,
    Computed,
    ConnectionLogin,
    InnerApi,
    Origin,
    Pending,
    Table,
    finish_computed,
)
from barnabas.broker.authorization.envelopes import forwarded_address, forwarded_header, forwarded_principal
from barnabas.broker.authorization.permissions import check_permission
from barnabas.broker.controller.core.requests import refused_as_a_whole
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from barnabas.protocol.registry import Api
from barnabas.protocol.schema import Message
from barnabas.work import LONG_BYTES, Work, in_worker

LENGTH_BYTES: Final = 4  # before a frame


class ForwardedOrigin:
    """The origin of a forwarded request: the broker's connection, with the access of the client."""

    def __init__(self, connection: Origin, access: Access) -> None:
        self.number = connection.number
        self.listener_name = connection.listener_name
        self.client_port = connection.client_port
        self.software = ("", "")
        self.access = access
        self.login: ConnectionLogin | None = None
        self._connection = connection

    @property
    def apis(self) -> Mapping[int, Api]:
        """The APIs of the listener."""
        return self._connection.apis

    def close(self, reason: str) -> None:
        """Closes the broker's connection."""
        self._connection.close(reason)

    def on_close(self, callback: Callable[[], None], /) -> None:
        """Calls back when the broker's connection has ended."""
        self._connection.on_close(callback)


def envelope(needs: Needs, call: Call[EnvelopeRequest]) -> Work:
    """Opens an envelope, and answers with the answer to the request inside."""
    check_permission(call.access, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER)
    request = call.request
    principal = forwarded_principal(request.request_principal)
    host = forwarded_address(request.client_host_address)
    header, position = forwarded_header(request.request_data)
    version, correlation = header.request_api_version, header.correlation_id
    try:
        route = needs.controller_router.inner(header.request_api_key, version)
        decode = partial(route.decode, request.request_data, position)
        long = len(request.request_data) > LONG_BYTES
        inner = (yield from in_worker(decode)) if long else decode()
    except RemoteProtocolError as error:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"Failed to parse forwarded request: {error}") from None
    origin = ForwardedOrigin(call.connection, needs.controller_server.access(principal, host))
    forwarded = Call(inner, version, header.request_api_key, header.client_id, origin, host)
    answer = route.answer(forwarded)
    sealed = yield from _sealed(answer, route, correlation, long=long)
    return sealed


def _sealed(answer: Answer, route: InnerApi, correlation: int, *, long: bool) -> Work:
    """Returns the envelope of an answer, or a Pending for it."""
    while not isinstance(answer, Message):
        if isinstance(answer, GeneratorType):
            answer = yield from answer
        elif isinstance(answer, Computed):
            if answer.takes_long or long:
                answer = finish_computed((yield from in_worker(answer.in_worker())))
            else:
                answer = answer.compute()
        elif isinstance(answer, Pending) and answer.resolved:
            answer = answer.response
        elif isinstance(answer, Pending):
            return _later(answer, route, correlation, long=long)
        else:  # a request that is forwarded always has an answer
            return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    if refused_as_a_whole(answer) == ErrorCode.NOT_CONTROLLER:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = partial(route.frame, correlation, answer)
    parts = (yield from in_worker(frame)) if long else frame()
    return EnvelopeResponse(response_data=b"".join(parts)[LENGTH_BYTES:])


def _later(inner: AnyPending, route: InnerApi, correlation: int, *, long: bool) -> Pending[EnvelopeResponse]:
    pending: Pending[EnvelopeResponse] = Pending(blocks=inner.blocks, on_closed=inner.closed)
    inner.attach(lambda answer: pending.resolve(_sealed(answer, route, correlation, long=long)), pending.effected)
    return pending


CONTROLLER_HANDLERS: Final[Table] = {EnvelopeRequest: (envelope, refuse)}
