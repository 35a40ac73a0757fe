"""Last requests of each client as text. Most are described on demand; the recorder describes large ones on arrival, so its ring need not keep them."""

from __future__ import annotations

from typing import Any, Final

from barnabas.broker.api.call import Pending
from barnabas.protocol import registry
from barnabas.runtime.clock import SystemClock
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.history.recorder import Entry, OutcomeText, Recorder
from barnabas.testing.history.request_texts import FETCH, PRODUCE, TopicNames, fetched, names_in, outcome, produced

WAITS: Final = "waits for its answer"


def last_requests(recorder: Recorder) -> list[dict[str, Any]]:
    """For each connection of a client: client id, address, whether it has ended, and its last requests, the oldest first."""
    ahead_ms = recorder.now_ms() - SystemClock().now_ms()  # of the broker's clock, which a test may move
    return [
        {
            "client": connection.client_id or "",
            "address": repr(connection),
            "closed": connection.closed,
            "requests": [_described(each, ahead_ms, recorder.topic_name) for each in entries],
        }
        for connection, entries in list(recorder.last.values())
        if connection.listener_name != INTERNAL_LISTENER
    ]


def _described(entry: Entry, ahead_ms: int, topic_name: TopicNames) -> dict[str, Any]:
    at_s, key, kept, answer = entry
    if isinstance(answer, OutcomeText):
        about, told = kept, WAITS if answer.text is None else answer.text
    else:
        answered, response = _answer(answer)
        told = outcome(key, response) if answered else WAITS
        if key == PRODUCE:
            about = produced(response, topic_name) or (f"transaction {kept}" if kept else "")
        else:
            about = fetched(kept, topic_name) if key == FETCH else names_in(kept, topic_name)
    return {
        "at_ms": round(at_s * 1000) + ahead_ms,
        "api": registry.API[key].name,
        "subject": about,
        "outcome": told,
    }


def _answer(answer: Any) -> tuple[bool, Any]:
    while isinstance(answer, Pending):
        if not answer.resolved:
            return False, None
        answer = answer.response
    return True, answer if hasattr(answer, "FIELDS") else None
