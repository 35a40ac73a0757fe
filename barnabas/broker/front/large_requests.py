"""LargeRequest: decodes, answers and encodes a large request in slices (`slices.Slices`), while its connection is held.

A request is large if it has more elements than one turn can decode, or if its handler is a generator with more work than fits in
one turn. The connection serves none of its later requests before the answer is encoded, so each connection has at most one
large request. It keeps its frame until it is decoded (`kept_frame`).

After the answer the request and the response are freed in slices, too: freeing 99,000 elements at once takes 10 to 30 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Final, Protocol

from barnabas.broker.api.call import Answer, AnyPending, Call, Origin, Pending
from barnabas.broker.api.router import Route, Router
from barnabas.broker.front.quota_enforcement import Charge
from barnabas.broker.scheduling.slices import Slice, Slices
from barnabas.errors import LargeMessage, TooManyElements
from barnabas.ports import Buffer
from barnabas.protocol.registry import READS
from barnabas.protocol.schema import Message, Struct
from barnabas.protocol.wire import Array
from barnabas.work import Work

ChargeFor = Callable[[Call[Message], int], Charge | None]  # takes a request and the size of its body
SHORT_FRAME_BYTES: Final = 4_096  # a request of this length is decoded at once: 0.3 ms
DECODED_BYTES_PER_UNIT: Final = 100  # of a request's frame
DECODED_BYTES_MAX: Final = 1024 * 1024  # of a frame, decoded at once
RECORD_APIS: Final = frozenset({0, 1})  # Produce: records are not decoded; Fetch: followers must not wait for it
FREED_AT_ONCE: Final = 64  # elements of a list
FREED_PER_UNIT: Final = 16  # of work (slices.Work)


class LeavingOrigin(Origin, Protocol):
    """The connection of a large request."""

    def has_left(self) -> bool:
        """Whether the client is known to have left."""
        ...


class LargeRequest:
    """One large request in progress. The module docstring describes it.

    Args:
        answered: called with the buffers of the answer; empty without an answer.
        failed: called with errors that concern more than the request: RemoteProtocolError, InvariantViolated, a bug.
        charge: charges the client for the request; None: it has no quotas.
    """

    def __init__(
        self,
        slices: Slices,
        route: Route,
        correlation: int,
        answered: Callable[[list[Buffer]], None],
        failed: Callable[[BaseException], None],
        charge: Charge | None = None,
    ) -> None:
        self._slices = slices
        self._route = route
        self._correlation = correlation
        self._answered = answered
        self._failed = failed
        self._charge = charge
        if charge is not None:
            charge.pause()
        self._slice: Slice | None = None
        self._pending: AnyPending | None = None
        self._kept: list[Message] = []  # the request, then the response: they are freed in slices

    def decode(
        self,
        router: Router,
        frame: Buffer,
        position: int,
        client_id: str | None,
        origin: LeavingOrigin,
        client_host: str,
        charge_for: ChargeFor | None = None,
    ) -> None:
        """Starts with the bytes of the request; its body begins at `position`.

        Args:
            charge_for: charges the client for the decoded request; None: no client has quotas.
        """
        work = self._decoded_and_handled(router, frame, position, client_id, origin, client_host, charge_for)
        self._slice = self._slices.start(work, self._handled, self._failed, line=self._slices.requests)

    def go_on(self, work: Work) -> None:
        """Starts with the remaining work of the handler."""
        self._slice = self._slices.start(self._timed(work), self._handled, self._failed)

    def cancel(self) -> None:
        """The connection closed."""
        if self._slice is not None:
            self._slice.cancel()
        if self._pending is not None:
            self._pending.closed()
        self._release()

    def _handled(self, response: Answer) -> None:
        if not isinstance(response, Pending):
            self._encode(response)
        elif response.resolved:
            self._handled(response.response)
        else:
            self._pending = response
            response.attach(self._handled, None)

    def _encode(self, response: Message | Work | None) -> None:
        self._pending = None
        if response is None:
            if self._charge is not None:
                self._charge.unanswered()
            self._end([])
            return
        if not isinstance(response, Message):
            self.go_on(response)
            return
        self._release()  # the request
        self._kept.append(response)
        if self._charge is not None:
            work = self._timed(self._charge.frame_in_slices(self._correlation, response))
        else:
            work = self._route.frame_in_slices(self._correlation, response)
        self._slice = self._slices.start(work, self._end, self._failed)

    def _timed(self, work: Work) -> Work:
        return work if self._charge is None else self._charge.timed(work)

    def _end(self, parts: list[Buffer]) -> None:
        self._answered(parts)
        self._release()

    def _release(self) -> None:
        kept, self._kept = self._kept, []
        if kept:
            self._slices.start(_freed(kept), _nothing, _nothing)

    def _decoded_and_handled(
        self,
        router: Router,
        frame: Buffer,
        position: int,
        client_id: str | None,
        origin: LeavingOrigin,
        client_host: str,
        charge_for: ChargeFor | None,
    ) -> Work:
        route = self._route
        if origin.has_left() and route.api_key in READS:
            return None  # was dropped
        size_bytes = len(frame) - position
        try:
            request = yield from route.decode_in_slices(frame, position)
        except TooManyElements as error:

            def call_of(beginning: Message) -> Call[Message]:
                return Call(beginning, route.version, route.api_key, client_id, origin, client_host)

            return route.refusal(call_of, frame, position, str(error))
        del frame  # the request holds everything needed of it
        self._kept.append(request)
        call = Call(request, route.version, route.api_key, client_id, origin, client_host)
        if charge_for is not None:
            self._charge = charge_for(call, size_bytes)
        response = router.answer(route, call)
        if self._charge is not None:
            self._charge.pause()
        if response.__class__ is GeneratorType:
            response = yield from self._timed(response)
        return response


def count_decoding(slices: Slices, api_key: int, size_bytes: int) -> None:
    """Counts the decoding of a request of some length for the present turn.

    Raises:
        LargeMessage: the turn is over, or the frame alone takes much of one: the request is decoded in slices.
    """
    if api_key not in RECORD_APIS:
        if slices.turn_is_over or size_bytes > DECODED_BYTES_MAX:
            raise LargeMessage("decoded in a later turn")
        slices.count(size_bytes // DECODED_BYTES_PER_UNIT)


def _nothing(_outcome: object) -> None:
    """No callback: nothing waits for freed memory."""


def _freed(messages: list[Message]) -> Generator[int, None, None]:
    """Frees messages a few elements at a time. It changes none of them, because others may still use them."""
    lists: list[list[Struct]] = []
    while messages:
        _find_long_lists(messages.pop(), lists)
        yield 1
    for elements in lists:
        nested = _names_of_lists(elements[0])
        while elements:
            if not nested:
                del elements[-FREED_AT_ONCE:]
                yield FREED_AT_ONCE // FREED_PER_UNIT
            else:
                last = elements.pop()
                yield 1 + sum(len(getattr(last, name) or ()) for name in nested) // FREED_PER_UNIT


def _find_long_lists(message: Struct, lists: list[list[Struct]]) -> None:
    for name in _names_of_lists(message):
        found = getattr(message, name) or []
        if len(found) > FREED_AT_ONCE:
            lists.append(list(found))
        else:
            for element in found:
                _find_long_lists(element, lists)


def _names_of_lists(message: Struct) -> list[str]:
    return [declared.name for declared in getattr(message, "FIELDS", ()) if isinstance(declared.wire, Array)]
