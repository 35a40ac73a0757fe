"""Last requests of each client as text. Most are described on demand; the recorder describes large ones on arrival, so its ring need not keep them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from barnabas.broker.api.call import Pending
from barnabas.protocol import registry
from barnabas.testing.faults.rule import leaves, subjects
from barnabas.testing.history.core.describe import error_name

WAITS: Final = "waits for its answer"
LEAVES_MAX: Final = 500  # fields of an answer in which an error is looked for
NAMES_SHOWN: Final = 3
PRODUCE: Final = 0
FETCH: Final = 1
INIT_PRODUCER_ID: Final = 22

TopicNames = Callable[[bytes], str | None]

# time of this process in s, API key, what is kept of the request, what is kept of its answer; each of the two as it is, or as a text
Entry = tuple[float, int, Any, Any]


class OutcomeText:
    """What a described answer says; None: it is not there yet."""

    __slots__ = ("text",)

    def __init__(self, text: str | None = "") -> None:
        self.text = text


def described_request(entry: Entry, ahead_ms: int, topic_name: TopicNames) -> dict[str, Any]:
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
    return fetched(request.topics, topic_name) if key == FETCH else names_in(request, topic_name)


def produced(response: Any, topic_name: TopicNames) -> str:
    """What an answer to a Produce request is about: partitions and offsets."""
    places = [
        f"{_topic(topic, topic_name)}-{each.index}" + (f" offset {each.base_offset}" if each.base_offset >= 0 else "")
        for topic in (response.responses if response is not None else ())
        for each in topic.partition_responses
    ]
    return _some(places)


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


def fetched(topics: Any, topic_name: TopicNames) -> str:
    """What a Fetch request asks for, by its topics."""
    places = [
        f"{_topic(topic, topic_name, 'topic')}-{each.partition} from {each.fetch_offset}"
        for topic in islice(topics, NAMES_SHOWN + 1)
        for each in islice(topic.partitions, NAMES_SHOWN + 1)
    ]
    return _some(places) or "as before"


def names_in(request: Any, topic_name: TopicNames) -> str:
    """What another request names: transactional ids, groups, topics."""
    found = subjects(request, topic_name)
    names = [name for kind in ("txn", "group", "topic") for name in sorted(found[kind]) if name]
    committed = getattr(request, "committed", None)
    word = "" if committed is None else "commit " if committed else "abort "
    return word + _some(names)


def _topic(owner: Any, topic_name: TopicNames, field: str = "name") -> str:
    return getattr(owner, field) or topic_name(owner.topic_id) or owner.topic_id.hex()


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
