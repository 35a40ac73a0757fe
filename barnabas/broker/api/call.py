"""Call, Pending and Done: requests to handlers, and delayed results.
A function that decides at once returns the result or raises BrokerError. One that may finish later takes a `Done[T]` and never raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Never, Protocol, TypeAlias, TypeVar

from barnabas.broker.api.access import Access
from barnabas.errors import BrokerError
from barnabas.ports import Buffer
from barnabas.protocol.registry import Api
from barnabas.protocol.schema import Message
from barnabas.work import Work

Q = TypeVar("Q", bound=Message, covariant=True)  # a request
R = TypeVar("R", bound=Message, contravariant=True)  # the response that a Pending takes
T = TypeVar("T")

Done = Callable[[T | BrokerError], None]
"""Continuation: is called once, with the result or with the error; maybe before the function that takes it returns."""


class ConnectionLogin(Protocol):
    """The logins of a connection, for handlers. Each method may raise RemoteProtocolError."""

    def may_begin_again(self) -> bool:
        """Whether a handshake starts a re-authentication now."""
        ...

    def on_api_versions(self, *, answered: bool = True) -> Answer:
        """None: the client may get the versions; `answered`: whether the answer names them."""
        ...

    def on_handshake(self, mechanism: str, version: int) -> Answer: ...

    def on_token(self, token: bytes) -> Answer: ...


class Origin(Protocol):
    """The connection of a request, for handlers."""

    number: int  # connections are numbered in the order of acceptance
    listener_name: str
    client_port: int
    software: tuple[str, str]  # name and version, from ApiVersions; empty until then
    access: Access  # of the principal that the connection has authenticated

    @property
    def login(self) -> ConnectionLogin | None:
        """None on a listener without SASL."""
        ...

    @property
    def apis(self) -> Mapping[int, Api]: ...

    def close(self, reason: str) -> None:
        """Closes the connection with one log line; answers that are ready are still sent."""
        ...

    def on_close(self, callback: Callable[[], None], /) -> None: ...


class Call(Generic[Q]):
    """One request for a handler. Views in `request` are valid only during the call: a handler that waits copies its data."""

    __slots__ = ("api_key", "client_host", "client_id", "connection", "request", "version")

    def __init__(
        self, request: Q, version: int, api_key: int, client_id: str | None, connection: Origin, client_host: str
    ) -> None:
        self.request = request
        self.version = version
        self.api_key = api_key
        self.client_id = client_id
        self.connection = connection
        self.client_host = client_host

    @property
    def listener(self) -> str:
        """The listener that received the request; answers give broker addresses of the same listener."""
        return self.connection.listener_name

    @property
    def access(self) -> Access:
        """Permissions of the client, with its principal and host."""
        access = self.connection.access
        return access if access.unrestricted else access.asked_by(self.api_key)


ELEMENTS_AT_ONCE: Final = 500  # of a Computed answer: at most 3 ms


class Computed:
    """An answer that only depends on what does not change, like the request and a published image. The dispatcher computes it at once,
    or in the worker thread if it may take more than some milliseconds.

    Args:
        run: computes the answer, or what remains to do on the loop. It must change nothing, and touch nothing that the event loop changes;
            it asks the access that it gets.
        elements: how many elements it visits, beside those of the request.
    """

    __slots__ = ("call", "elements", "run")

    def __init__(self, call: Call[Message], run: Callable[[Access], Message | Rest], elements: int = 0) -> None:
        self.call = call
        self.run = run
        self.elements = elements

    @property
    def takes_long(self) -> bool:
        """Whether the worker thread computes it, even if the request is small."""
        return self.elements > ELEMENTS_AT_ONCE

    def compute(self) -> Answer:
        """Computes the answer on the loop."""
        return finish_computed(self.run(self.call.access))

    def in_worker(self) -> Callable[[], Message | Rest]:
        """What computes the answer in the worker thread; `finish_computed` takes its result on the loop."""
        return partial(self.run, self.call.access.fixed())


def finish_computed(computed: Message | Rest) -> Answer:
    """Does on the loop what remains of a Computed answer."""
    return computed if isinstance(computed, Message) else computed()


class Pending(Generic[R]):
    """A delayed answer.

    Args:
        blocks: the request waits *before* its effect, so the later requests of its connection are held and reading pauses, until `resolve` or
            `effected`. Otherwise the request waits after its effect and delays only later answers.
        on_closed: called once if the connection closes before `resolve`; the request must then have no effect.
    """

    __slots__ = ("_deliver", "_response", "_unblock", "blocks", "on_closed", "resolved")

    def __init__(self, *, blocks: bool = False, on_closed: Callable[[], None] | None = None) -> None:
        self.blocks = blocks
        self.on_closed = on_closed
        self.resolved = False
        self._response: Answer = None
        self._deliver: Callable[[Answer], None] | None = None
        self._unblock: Callable[[], None] | None = None

    def resolve(self, response: R | Computed | Work | None) -> None:
        """Answers, by a response or by what returns one; `None` answers nothing (acks=0).

        A second call does nothing, and neither does one after the connection closed.
        """
        if self.resolved:
            return
        self.resolved = True
        self.on_closed = None
        self._response = response
        if self._deliver is not None:
            self._deliver(response)
            self._deliver = None
        self.effected()

    def effected(self) -> None:
        """The effect of a blocking request has happened: later requests continue; the answer still waits."""
        self.blocks = False
        if self._unblock is not None:
            unblock, self._unblock = self._unblock, None
            unblock()

    def closed(self) -> None:
        """The connection closed (called by connections only): drops the request and notifies the handler."""
        if self.resolved:
            return
        self.resolved = True
        self._deliver = None
        self.effected()  # later requests of the connection may still be served
        if self.on_closed is not None:
            on_closed, self.on_closed = self.on_closed, None
            on_closed()

    def attach(self, deliver: Callable[[Answer], None], unblock: Callable[[], None] | None) -> None:
        """Sets the receiver of the answer, before `resolve` (called by connections only)."""
        self._deliver = deliver
        self._unblock = unblock

    @property
    def response(self) -> Answer:
        """The answer, if `resolve` was called before `attach`."""
        return self._response


AnyPending: TypeAlias = Pending[Never]  # for code that takes the answer and does not give it
Answer: TypeAlias = Message | AnyPending | Computed | Work | None  # work returns one of the others
Rest: TypeAlias = Callable[[], Answer]  # what a handler does on the loop after the worker thread
Handler = Callable[[Any, Call[Any]], Answer]  # takes the Needs of its family, and the call
Refuse = Callable[[Call[Any], BrokerError], Message]  # the response with one error for the whole request; in any thread
Table = Mapping[type[Message], tuple[Handler, Refuse]]  # handlers of a family, by request class


class InnerApi(NamedTuple):
    """Serves an API version inside other requests: decodes a request, answers it, encodes the frame of the answer."""

    decode: Callable[[bytes, int], Message]
    answer: Callable[[Call[Message]], Answer]
    frame: Callable[[int, Message], list[Buffer]]
