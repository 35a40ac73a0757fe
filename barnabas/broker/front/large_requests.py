"""LargeRequest: serves a request that may take more than some milliseconds, while its connection is held.

The rule: such a request is decoded, and its answer encoded, by one plain call in the worker thread (`work.in_worker`); so is an answer that
only depends on a published image (`Computed`). Everything else is a plain call on the loop. This module is the one place that
decides: a request is large if its frame is long or has many elements, or if its Computed answer visits many elements.

The connection serves none of its later requests before the answer is encoded, so each connection has at most one
large request. It keeps its frame until it is decoded (`kept_frame`). LARGE_REQUESTS_AT_ONCE are in the worker thread.

After the answer the request and the response are freed in the worker thread, too: freeing 99,000 elements at once takes 10 to 30 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import Final, Protocol, TypeVar

from barnabas.broker.api.call import Answer, AnyPending, Call, Computed, Origin, Pending, finish_computed
from barnabas.broker.api.router import Route, Router
from barnabas.broker.front.quota_enforcement import Charge
from barnabas.broker.scheduling.slices import Slice, Slices
from barnabas.errors import LargeMessage, TooManyElements
from barnabas.ports import Buffer
from barnabas.protocol.registry import READS
from barnabas.protocol.schema import Message
from barnabas.protocol.wire import Array
from barnabas.work import LONG_BYTES, Steps, Work, in_worker

T = TypeVar("T")
ChargeFor = Callable[[Call[Message], int], Charge | None]  # takes a request and the size of its body
SHORT_FRAME_BYTES: Final = 4_096  # a request of this length is decoded at once: 0.3 ms
DECODED_BYTES_PER_UNIT: Final = 100  # of a request's frame
DECODED_BYTES_MAX: Final = 1024 * 1024  # of a frame, decoded at once
COMPUTED_PER_UNIT: Final = 2  # elements
RECORD_APIS: Final = frozenset({0, 1})  # Produce: records are not decoded; Fetch: followers must not wait for it


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
        # The request, then the response: they are freed in the worker thread if they are long.
        self._kept: list[Message] = []
        self._long = False

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
        work = self._served(router, frame, position, client_id, origin, client_host, charge_for)
        self._slice = self._slices.start(work, self._done, self._failed, line=self._slices.requests)

    def go_on(self, answer: Answer) -> None:
        """Starts with what the handler has returned."""
        self._slice = self._slices.start(self._framed(answer), self._done, self._failed)

    def cancel(self) -> None:
        """The connection closed."""
        if self._slice is not None:
            self._slice.cancel()
        if self._pending is not None:
            self._pending.closed()
        self._release()

    def _done(self, outcome: list[Buffer] | AnyPending) -> None:
        if isinstance(outcome, Pending):
            self._pending = outcome
            outcome.attach(self.go_on, None)
        else:
            self._answered(outcome)
            self._release()

    def _release(self) -> None:
        kept, self._kept = self._kept, []
        if kept and self._long:
            self._slices.start(in_worker(partial(_free, kept)), _nothing, _nothing)

    def _served(
        self,
        router: Router,
        frame: Buffer,
        position: int,
        client_id: str | None,
        origin: LeavingOrigin,
        client_host: str,
        charge_for: ChargeFor | None,
    ) -> Steps[list[Buffer] | AnyPending]:
        """Returns the frame of the answer, or a Pending for the answer."""
        route = self._route
        if origin.has_left() and route.api_key in READS:
            return []  # was dropped
        size_bytes = len(frame) - position
        self._long = size_bytes > LONG_BYTES
        try:
            request = yield from in_worker(partial(route.decode_large, frame, position))
        except TooManyElements as error:

            def call_of(beginning: Message) -> Call[Message]:
                return Call(beginning, route.version, route.api_key, client_id, origin, client_host)

            return route.frame(self._correlation, route.refusal(call_of, frame, position, str(error)))
        del frame  # the request holds everything needed of it
        self._kept.append(request)
        call = Call(request, route.version, route.api_key, client_id, origin, client_host)
        del request
        if charge_for is not None:
            self._charge = charge_for(call, size_bytes)
        response = router.answer(route, call)
        if self._charge is not None:
            self._charge.pause()
        del call
        framed = yield from self._framed(response)
        return framed

    def _framed(self, response: Answer) -> Steps[list[Buffer] | AnyPending]:
        """Returns the frame of an answer, or the Pending that the answer waits for."""
        self._pending = None
        charge = self._charge
        while not isinstance(response, Message):
            if response is None:
                if charge is not None:
                    charge.unanswered()
                return []
            if isinstance(response, Computed):
                run = response.in_worker()
                computed = yield from in_worker(run if charge is None else charge.measured(run))
                rest = partial(finish_computed, computed)
                response = (rest if charge is None else charge.measured(rest))()
            elif isinstance(response, GeneratorType):
                response = yield from self._timed(response)
            elif isinstance(response, Pending):
                if not response.resolved:
                    return response
                response = response.response
        self._release()  # the request
        self._kept.append(response)
        if charge is not None:
            framed = yield from charge.frame_in_worker(self._correlation, response)
        else:
            framed = yield from in_worker(partial(Route.frame, self._route, self._correlation, response))
        self._long = self._long or sum(map(len, framed)) > LONG_BYTES
        return self._route.framed(response, framed)

    def _timed(self, work: Work) -> Work:
        return work if self._charge is None else self._charge.timed(work)


def count_decoding(slices: Slices, api_key: int, size_bytes: int) -> None:
    """Counts the decoding of a request of some length for the present turn.

    Raises:
        LargeMessage: the turn is over, or the frame alone takes much of one: the worker thread decodes the request.
    """
    if api_key not in RECORD_APIS:
        if slices.turn_is_over or size_bytes > DECODED_BYTES_MAX:
            raise LargeMessage("decoded in a later turn")
        slices.count(size_bytes // DECODED_BYTES_PER_UNIT)


def _nothing(_outcome: object) -> None:
    """No callback: nothing waits for freed memory."""


def _free(messages: list[Message]) -> None:
    """Frees messages an element at a time, so that the loop may run in between. It changes none of them, because others may use them."""
    while messages:
        message = messages.pop()
        found = [getattr(message, each.name) for each in message.FIELDS if isinstance(each.wire, Array)]
        lists = [list(elements) for elements in found if elements]
        del message, found
        for elements in lists:
            while elements:
                elements.pop()
