"""Router: finds the handler of a request, runs it and encodes its answer.

A handler is a function `handler(needs, call) -> response | Computed | Pending | None`, or a generator that returns one of these and yields
after each element that it has answered (`slices.Work`). The module of its family, `broker/handlers/<family>.py`, declares in `Needs` what
its handlers work on. Its table `HANDLERS` lists each handler under its request class, beside the function
`refuse(call, error) -> response` that makes the answer with one error for the whole request. The router calls `refuse` for a
BrokerError that the handler raises. The controller listener uses the table `CONTROLLER_HANDLERS`, and `quorum` and `cluster` serve
its own APIs. A family is imported on its first request, so that a broker starts fast.

Unknown API keys and versions close the connection, as in Kafka, except that ApiVersions in an unknown version is answered in
version 0 with UNSUPPORTED_VERSION and the served range (KIP-511).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from types import GeneratorType
from typing import Final, NamedTuple

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Answer, Call, Computed, Handler, InnerApi, Refuse, Rest, Table
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.protocol import registry
from barnabas.protocol.schema import Message, codec, decode, decode_beginning, encode_parts
from barnabas.protocol.wire import Array, present
from barnabas.work import Work

log = logger("kafka.request.logger")

# Answers with record batches: they are sent as a list of buffers, without a copy of the batches.
_ANSWERS_WITH_RECORDS: Final = frozenset({1})
# Controller listener: these families serve the same APIs as for clients, `quorum` serves Raft, `cluster` serves the rest.
_FAMILIES_EVERYWHERE: Final = frozenset({"authentication", "envelope", "metadata"})
_FAMILIES_OF_THE_QUORUM: Final = frozenset({"quorum", "fetch"})
LOGIN_LISTENER: Final = "login"  # of connections that have not logged in
_TABLES: Final = {"broker": "HANDLERS", "controller": "CONTROLLER_HANDLERS", LOGIN_LISTENER: "LOGIN_HANDLERS"}
_LOGIN_APIS: Final = frozenset({17, 18, 36})  # SaslHandshake, ApiVersions, SaslAuthenticate
REFUSED_BYTES: Final = 8_192  # of a request that is too large: its first elements are answered
_PREFIX: Final = Struct(">ii")  # frame length without the length field, correlation id


class MeasuredWait(NamedTuple):
    """A waiting measured request: its begin, the begin of its wait, and its meter."""

    began_ns: int
    waits_ns: int
    meter: object


class Route:
    """Serves one (API, version); made on its first request."""

    __slots__ = (
        "api_key",
        "began_ns",
        "blank",
        "by_parts",
        "decode",
        "encode_into",
        "handler",
        "measured",
        "refuse",
        "request",
        "requests",
        "tagged",
        "version",
    )

    def __init__(self, api: registry.Api, version: int, handler: Handler, refuse: Refuse) -> None:
        self.api_key = api.key
        self.requests = 0  # received so far
        self.measured = -1  # a request is measured if no bit of its number is in this mask; -1: none is
        self.began_ns = 0  # begin of the present measured request; else 0
        self.version = version
        self.handler = handler
        self.refuse = refuse
        self.request = api.request
        self.decode = codec(api.request, version).decode
        self.encode_into = codec(api.response, version).encode_into
        self.tagged = registry.request_header_version(api.key, version) >= 2
        # Room for length and correlation id, and the empty tag section of a version 1 header.
        self.blank = bytes(8 if registry.response_header_version(api.key, version) == 0 else 9)
        self.by_parts = api.key in _ANSWERS_WITH_RECORDS

    def begin(self) -> None:
        """A measured request begins."""

    def answered(self) -> None:
        """The present measured request is answered without a wait."""

    def hold(self) -> MeasuredWait | None:
        """The present request waits; `finish` takes the result when it is answered."""
        return None

    def finish(self, timing: MeasuredWait) -> None:
        """A request that waited is answered."""

    def refusal(self, call_of: Callable[[Message], Call[Message]], frame: Buffer, position: int, why: str) -> Message:
        """Answers a request that is too large with INVALID_REQUEST, for the elements at its beginning; its body is at `position` of the frame.

        Raises RemoteProtocolError if the answer names no error, because it would have one for each element and the frame shows none.
        """
        beginning = decode_beginning(self.request, memoryview(frame)[:REFUSED_BYTES], self.version, position)
        refused = self.refuse(call_of(beginning), BrokerError(ErrorCode.INVALID_REQUEST, why))
        if not any(
            getattr(refused, each.name)
            for each in present(type(refused), self.version)
            if each.name == "error_code" or isinstance(each.wire, Array)
        ):
            raise RemoteProtocolError(why)
        log.warning("Request is refused: api=%s reason=%s", registry.API[self.api_key].name, why)
        return refused

    def frame(self, correlation: int, response: Message) -> list[Buffer]:
        """The whole frame of an answer, as buffers in write order."""
        out = bytearray(self.blank)
        if self.by_parts:
            parts: list[Buffer] = encode_parts(response, self.version, out)
            _PREFIX.pack_into(parts[0], 0, sum(map(len, parts)) - 4, correlation)
            return parts
        self.encode_into(out, response)
        _PREFIX.pack_into(out, 0, len(out) - 4, correlation)
        return [out]

    def framed(self, response: Message, parts: list[Buffer]) -> list[Buffer]:
        """The worker thread has encoded an answer, by `Route.frame`: returns what to write."""
        return parts

    def decode_large(self, frame: Buffer, position: int) -> Message:
        """Returns the request whose body begins at `position` of its frame, with as many elements as any request may have."""
        return decode(self.request, frame, self.version, position)


Serve = Callable[[Route, Call[Message]], Answer]  # `Router.answer`, or what stands before it
Interceptor = Callable[[Serve, Route, Call[Message]], Answer]


class Router:
    """The table of routes of one listener of a node.

    `handler(needs, call)` returns a response, a Pending or None, or is a generator that returns one of these and yields work units. The
    module of its family, `broker/handlers/<family>.py`, declares `Needs` and the table `HANDLERS` (`CONTROLLER_HANDLERS` on the controller
    listener) of handlers and `refuse(call, error)` by request class. A family is imported on its first request, so that a broker starts
    fast.

    Args:
        needs: the parts of the node; has every member of every family's `Needs`.
        listener: "broker" for clients and brokers, "controller", or "login" for connections of both that have not logged in.
    """

    def __init__(self, needs: object, listener: str = "broker") -> None:
        self._needs = needs
        self.listener = listener
        self.apis = {
            key: api
            for key, api in registry.API.items()
            if listener in api.listeners or (listener == LOGIN_LISTENER and key in _LOGIN_APIS)
        }
        self.routes: dict[int, Route] = {}  # api_key << 16 | version
        # the metrics set one that measures
        self.make_route: Callable[[registry.Api, int, Handler, Refuse], Route] = Route

    def route(self, api_key: int, version: int) -> Route:
        """The route of an API version; made on first use. Raises RemoteProtocolError if this listener does not serve it."""
        route = self.routes.get(api_key << 16 | version)
        if route is None:
            api = self.apis.get(api_key)
            if api is None:
                known = registry.API.get(api_key)
                if known is None:
                    raise RemoteProtocolError(f"unknown API key {api_key}")
                if self.listener == LOGIN_LISTENER:
                    raise RemoteProtocolError(
                        f"{known.name} before a login: this listener needs SASL, is the client's security.protocol SASL_SSL or "
                        "SASL_PLAINTEXT?"
                    )
                raise RemoteProtocolError(f"{known.name} is not served on this listener")
            if not api.versions[0] <= version <= api.versions[1]:
                raise RemoteProtocolError(
                    f"{api.name} version {version} is not served, only {api.versions[0]} to {api.versions[1]}"
                )
            handler, refuse = self._handler(api)
            route = self.routes[api_key << 16 | version] = self.make_route(api, version, handler, refuse)
        return route

    def set_interceptors(self, interceptors: Sequence[Interceptor]) -> None:
        """From now on requests pass these, in this order, on their way to the handler; without any, they pay for no test.

        An interceptor calls `serve(route, call)` for what comes after it: once, never or repeatedly, now or later. A call that is
        served later needs a request of its own.
        """
        serve: Serve = partial(Router.answer, self)
        for each in reversed(interceptors):
            serve = partial(each, serve)
        self.__dict__.pop("answer", None)
        if interceptors:
            self.__dict__["answer"] = serve  # a type checker refuses to assign to a method

    def answer(self, route: Route, call: Call[Message]) -> Answer:
        """Runs the handler: returns its response, a Pending, None, or the remaining work as a generator that returns one of these.

        Raises:
            RemoteProtocolError: the request breaks the protocol, so the connection must close.
            InvariantViolated: the node must stop.
        """
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "Request: api=%s version=%d client_id=%s host=%s",
                registry.API[call.api_key].name,
                call.version,
                call.client_id,
                call.client_host,
            )
        try:
            response = route.handler(self._needs, call)
        except (RemoteProtocolError, InvariantViolated):
            raise
        except Exception as error:
            return _refusal(route, call, error)
        if response.__class__ is Computed:
            return Computed(call, partial(_computed, route, call, response.run), response.elements)
        return _guarded(route, call, response) if response.__class__ is GeneratorType else response

    def inner(self, api_key: int, version: int) -> InnerApi:
        """For requests inside another one (Envelope). Raises RemoteProtocolError as `route`."""
        route = self.route(api_key, version)
        return InnerApi(route.decode_large, partial(self.answer, route), route.frame)

    def _handler(self, api: registry.Api) -> tuple[Handler, Refuse]:
        family = self.family(api)
        module = importlib.import_module(f"barnabas.broker.handlers.{family}")
        table: Table = getattr(module, _TABLES[self.listener])
        found = table.get(api.request)
        if found is None:
            raise InvariantViolated(f"handlers/{family}.py does not serve {api.name} on the {self.listener} listener")
        return found

    def family(self, api: registry.Api) -> str:
        if self.listener == LOGIN_LISTENER:
            return "authentication"
        if self.listener == "broker" or api.family in _FAMILIES_EVERYWHERE:
            return api.family
        return "quorum" if api.family in _FAMILIES_OF_THE_QUORUM else "cluster"


def _guarded(route: Route, call: Call[Message], work: Work) -> Work:
    """Runs the handler's work and treats its exceptions as `Router.answer` does."""
    try:
        response = yield from work
    except (RemoteProtocolError, InvariantViolated):
        raise
    except Exception as error:
        return _refusal(route, call, error)
    return response


def _computed(
    route: Route, call: Call[Message], run: Callable[[Access], Message | Rest], access: Access
) -> Message | Rest:
    """Computes an answer in any thread, and treats exceptions as `Router.answer` does."""
    try:
        found = run(access)
    except (RemoteProtocolError, InvariantViolated):
        raise
    except Exception as error:
        return route.refuse(call, _told(route, call, error))
    return found if isinstance(found, Message) else partial(_continued, route, call, found)


def _continued(route: Route, call: Call[Message], rest: Rest) -> Answer:
    """Does on the loop what remains, and treats exceptions as `Router.answer` does."""
    try:
        response = rest()
    except (RemoteProtocolError, InvariantViolated):
        raise
    except Exception as error:
        return _refusal(route, call, error)
    return _guarded(route, call, response) if response.__class__ is GeneratorType else response


def _refusal(route: Route, call: Call[Message], error: Exception) -> Computed | None:
    """The answer for an error that a handler raised. A Produce request with acks=0 has no answer: its connection closes, as in Kafka."""
    told = _told(route, call, error)
    if call.api_key == registry.PRODUCE_KEY and call.request.acks == 0:  # type: ignore[attr-defined]  # by its key
        call.connection.close(f"Produce with acks=0 failed: {told}")
        return None
    return Computed(call, lambda _access: route.refuse(call, told))


def _told(route: Route, call: Call[Message], error: Exception) -> BrokerError:
    """What the peer learns of an error. A bug of ours: it gets an error code, and the log gets the trace."""
    if isinstance(error, BrokerError):
        return error.with_traceback(None)  # its frames would keep the error in a cycle
    log.error("Request failed: api=%s host=%s", registry.API[call.api_key].name, call.client_host, exc_info=error)
    return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
