"""The last requests of each client, as text: from what a recorder keeps of them.

Driven by: the command `history_last` inside a broker; `History` for a broker of this process that has ended. Emits: JSON values.

Most requests are described when somebody asks. The recorder describes a large one when it arrives, by `subject` and `outcome`, so that
its ring need not keep it.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from barnabas.broker.call import Pending
from barnabas.protocol import registry
from barnabas.runtime.clock import SystemClock
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.faults.rule import leaves, subjects
from barnabas.testing.history.describe import error_name
from barnabas.testing.history.recorder import FETCH, PRODUCE, Entry, Recorder, Text, TopicNames

__all__ = ["last_requests", "outcome", "subject"]

LEAVES_MAX: Final = 500  # fields of an answer in which an error is looked for
NAMES_SHOWN: Final = 3
INIT_PRODUCER_ID: Final = 22
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
    if isinstance(answer, Text):
        about, told = kept, WAITS if answer.text is None else answer.text
    else:
        answered, response = _answer(answer)
        told = outcome(key, response) if answered else WAITS
        if key == PRODUCE:
            about = _produced(response, topic_name) or (f"transaction {kept}" if kept else "")
        else:
            about = _fetched(kept, topic_name) if key == FETCH else _named(kept, topic_name)
    return {
        "at_ms": round(at_s * 1000) + ahead_ms,
        "api": registry.API[key].name,
        "subject": about,
        "outcome": told,
    }


def subject(key: int, request: Any, topic_name: TopicNames) -> str:
    """What a request is about."""
    if key == PRODUCE:
        return _some(
            [
                f"{_topic(topic, topic_name)}-{each.index}"
                for topic in islice(request.topic_data, NAMES_SHOWN + 1)
                for each in islice(topic.partition_data, NAMES_SHOWN + 1)
            ]
        )
    return _fetched(request.topics, topic_name) if key == FETCH else _named(request, topic_name)


def _answer(answer: Any) -> tuple[bool, Any]:
    while isinstance(answer, Pending):
        if not answer.resolved:
            return False, None
        answer = answer.response
    return True, answer if hasattr(answer, "FIELDS") else None


def _topic(owner: Any, topic_name: TopicNames, field: str = "name") -> str:
    return getattr(owner, field) or topic_name(owner.topic_id) or owner.topic_id.hex()


def _produced(response: Any, topic_name: TopicNames) -> str:
    places = [
        f"{_topic(topic, topic_name)}-{each.index}" + (f" offset {each.base_offset}" if each.base_offset >= 0 else "")
        for topic in (response.responses if response is not None else ())
        for each in topic.partition_responses
    ]
    return _some(places)


def _fetched(topics: Any, topic_name: TopicNames) -> str:
    places = [
        f"{_topic(topic, topic_name, 'topic')}-{each.partition} from {each.fetch_offset}"
        for topic in islice(topics, NAMES_SHOWN + 1)
        for each in islice(topic.partitions, NAMES_SHOWN + 1)
    ]
    return _some(places) or "as before"


def _named(request: Any, topic_name: TopicNames) -> str:
    named = subjects(request, topic_name)
    names = [name for kind in ("txn", "group", "topic") for name in sorted(named[kind]) if name]
    committed = getattr(request, "committed", None)
    word = "" if committed is None else "commit " if committed else "abort "
    return word + _some(names)


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")


def outcome(key: int, response: Any) -> str:
    """What an answer says: its first error, a producer id, or "ok"; "" for None."""
    if response is None:
        return ""
    error = next(
        (code for _, name, code in islice(leaves(response), LEAVES_MAX) if name.endswith("error_code") and code), 0
    )
    if error:
        return error_name(error)
    if key == INIT_PRODUCER_ID:
        return f"producer {response.producer_id} epoch {response.producer_epoch}"
    return "ok"
