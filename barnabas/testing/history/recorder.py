"""Recorder: notes what its broker acknowledges and delivers.

Levels:
- "off": nothing is noted.
- "last": the last requests of each connection, for the report of a failed test. A request costs one entry of a ring. What is small is
  kept as it is and described when somebody asks; of other requests a line of text is kept. No records are kept.
- "all": also events. They are made when the handler knows the outcome, so the event of a write is noted before its acknowledgement
  leaves, and a fault that replaces or cuts the answer changes nothing in it.

Invariants: the recorder keeps a bounded number of entries, each of at most a few kilobytes, and events that its reader has not taken are bounded, too: beyond that the
numbers of the events have a gap.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from barnabas.broker.api.call import Call
from barnabas.broker.api.router import Interceptor, Route, Serve
from barnabas.protocol.messages.produce import ProduceRequest
from barnabas.runtime.clock import SystemClock
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.errors import KitError, unknown
from barnabas.testing.faults.rule import Rule
from barnabas.testing.faults.table import is_internal, mapped
from barnabas.testing.history.core.describe import DESCRIBED, Fields, produced_batches, refused_batches
from barnabas.testing.history.last_requests import (
    FETCH,
    PRODUCE,
    Entry,
    OutcomeText,
    TopicNames,
    described_request,
    outcome,
    subject,
)

LEVELS: Final = ("off", "last", "all")
CONNECTIONS_KEPT: Final = 200
REQUESTS_KEPT: Final = 12  # of each connection
UNSEEN_MAX: Final = 20_000  # events that the other process has not confirmed

WRITE_TXN_MARKERS: Final = 27
# Requests and answers of these APIs have no lists, so the ring keeps them as they are: Heartbeat, InitProducerId, AddOffsetsToTxn, EndTxn.
SMALL: Final = frozenset({12, 22, 25, 26})
ANSWERS_DESCRIBED: Final = frozenset({8, 11, 13, 14, 24, 28, 68})  # the errors in them tell something
PLACES_KEPT: Final = (
    8  # topics of a Produce or Fetch request, or partitions of its first topic, that are kept as they are
)
TEXT_CHARS_MAX: Final = 1_000


class Recorder:
    """The notes of one broker.

    Attributes:
        level: one of LEVELS.
        noted: number of the last event.
        forgotten: how many events had no room.
    """

    def __init__(self, broker_id: int, emit: Callable[[str, Any], None]) -> None:
        self.broker_id = broker_id
        self.now_ms: Callable[[], int] = lambda: 0  # `Interception` sets both
        self.topic_name: TopicNames = lambda topic_id: None
        self.level = "off"
        self.noted = 0
        self.forgotten = 0
        self.sink: Callable[[Fields], None] | None = None  # in this process
        self.last: dict[int, tuple[Any, deque[Entry]]] = {}  # by number of the connection
        self._watched: dict[int, None] = {}  # connections whose end will be noted
        self._seen = 0  # number of the last event that the other process has confirmed
        self._emit = emit

    def set_level(self, level: str, sink: Callable[[Fields], None] | None = None) -> None:
        """Notes more or less from now on. `sink` takes the events if the reader lives in this process."""
        if level not in LEVELS:
            raise KitError(unknown("level of the history", level, LEVELS))
        self.level = level
        self.sink = sink
        if level == "off":
            self.last.clear()
        elif level == "all":
            for connection, _ in self.last.values():
                self._watch(connection)

    def begin_anew(self) -> None:
        """Forgets everything: another test begins."""
        self.last.clear()
        self.noted = self.forgotten = self._seen = 0

    def seen(self, number: int) -> None:
        """The reader has got the events up to this one."""
        self._seen = max(self._seen, number)

    def note(self, fields: Fields) -> None:
        """Adds an event."""
        self.noted += 1
        event = {**fields, "number": self.noted, "at_ms": self.now_ms(), "broker": self.broker_id}
        if self.sink is not None:
            self.sink(event)
        elif self.noted - self._seen <= UNSEEN_MAX:
            self._emit("history", event)
        else:
            self.forgotten += 1

    def requests(self, connection: Any) -> deque[Entry]:
        """The ring of a connection."""
        found = self.last.get(connection.number)
        if found is None:
            if len(self.last) >= CONNECTIONS_KEPT:
                del self.last[next(iter(self.last))]
            found = self.last[connection.number] = connection, deque(maxlen=REQUESTS_KEPT)
            if self.level == "all":
                self._watch(connection)
        return found[1]

    def _watch(self, connection: Any) -> None:
        """Notes the end of a connection, once: its ring may have been given away and be made again."""
        if connection.number not in self._watched:
            self._watched[connection.number] = None
            connection.on_close(partial(self._closed, connection))

    def _closed(self, connection: Any) -> None:
        self._watched.pop(connection.number, None)
        if self.level == "all":
            self.note({"kind": "closed", **_origin(connection.client_id, connection)})

    # -- level "last"

    def noting(self) -> Interceptor:
        """Makes an interceptor that notes each request by one entry in a ring: a closure, because every request pays for it."""
        recorder, described = self, self._describe
        latest: Any = None  # the connection of the last request, and what adds to its ring
        note: Callable[[Entry], None] = deque[Entry](maxlen=1).append
        now_s = time.time  # a third of the cost of Clock.now_ms; `last_requests` corrects it by the broker's clock

        def note_request(serve: Serve, route: Route, call: Call[Any]) -> Any:
            nonlocal latest, note
            response = serve(route, call)
            if call.connection is not latest:
                latest = call.connection
                note = recorder.requests(latest).append
            key, request = route.api_key, call.request
            if key == PRODUCE:
                topics = request.topic_data
                if len(topics) == 1 and len(topics[0].partition_data) <= PLACES_KEPT:
                    note((now_s(), PRODUCE, request.transactional_id, response))
                else:
                    note((now_s(), PRODUCE, described(call), OutcomeText()))
            elif key == FETCH:
                topics = request.topics
                if not topics or (len(topics) == 1 and len(topics[0].partitions) <= PLACES_KEPT):
                    note((now_s(), FETCH, topics, None))
                else:
                    note((now_s(), FETCH, described(call), OutcomeText()))
            elif key in SMALL:
                note((now_s(), key, request, response))
            elif key in ANSWERS_DESCRIBED:
                later = OutcomeText(None)
                note((now_s(), key, described(call), later))
                return mapped(response, partial(self._describe_answer, key, later))
            else:
                note((now_s(), key, described(call), OutcomeText()))
            return response

        return note_request

    def _describe(self, call: Call[Any]) -> str:
        return subject(call.api_key, call.request, self.topic_name)[:TEXT_CHARS_MAX]

    def _describe_answer(self, key: int, later: OutcomeText, response: Any) -> Any:
        later.text = outcome(key, response)
        return response

    # -- level "all"

    def record(self, serve: Serve, route: Route, call: Call[Any]) -> Any:
        """Interceptor: makes events of the outcome of a handler."""
        if call.api_key not in DESCRIBED or (is_internal(call) and call.api_key != WRITE_TXN_MARKERS):
            return serve(route, call)
        note = self._note_of(call)
        return mapped(serve(route, call), note)

    def _note_of(self, call: Call[Any]) -> Callable[[Any], Any]:
        """What notes the outcome of a request. It keeps no view of the request, whose buffer is used again."""
        key, request, batches = call.api_key, call.request, None
        if key == PRODUCE:
            batches = produced_batches(request)
            request = ProduceRequest(acks=request.acks, transactional_id=request.transactional_id)
        origin = _origin(call.client_id, call.connection)

        def note(response: Any) -> Any:
            if response is not None or key == PRODUCE:
                for each in DESCRIBED[key](request, response, self.topic_name, batches):
                    self.note({**each, **origin})
            return response

        return note

    def note_hit(self, number: int, rule: Rule, met: Fields, call: Call[Any]) -> None:
        """A fault has met a request; it lets the request pass if `met` does not describe the request."""
        if self.level != "all" or "api" not in met:
            return
        origin = _origin(call.client_id, call.connection)
        self.note({"kind": "fault", "fault": number, "api": met["api"], "action": rule.action, **origin})
        if call.api_key == PRODUCE and _has_no_effect(rule):
            for each in refused_batches(call.request, rule.error or "NO_ANSWER", self.topic_name):
                self.note({**each, **origin})


def _has_no_effect(rule: Rule) -> bool:
    """Whether no handler sees a request that meets the fault."""
    return (
        rule.action == "drop"
        or (rule.action == "error" and not rule.after)
        or (rule.action == "disconnect" and rule.at == "received")
    )


def _origin(client_id: str | None, connection: Any) -> Fields:
    return {"client": client_id or "", "address": repr(connection), "connection": connection.number}


def last_requests(recorder: Recorder) -> list[dict[str, Any]]:
    """For each connection of a client: client id, address, whether it has ended, and its last requests, the oldest first."""
    ahead_ms = recorder.now_ms() - SystemClock().now_ms()  # of the broker's clock, which a test may move
    return [
        {
            "client": connection.client_id or "",
            "address": repr(connection),
            "closed": connection.closed,
            "requests": [described_request(each, ahead_ms, recorder.topic_name) for each in entries],
        }
        for connection, entries in list(recorder.last.values())
        if connection.listener_name != INTERNAL_LISTENER
    ]
