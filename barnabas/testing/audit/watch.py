"""AuditWatch: stops the successful answers to clients until the audit has decided.

An answer to OffsetFetch is told with the number 0, and not stopped.

A stopped request has had its effect, so the audit acts at a point that depends on no time: after an effect, and before the
application knows of it. Answers with an error are not stopped, nor are those to other brokers and to the kit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from barnabas.broker.api.call import Call, Pending
from barnabas.broker.api.router import Route, Serve
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol import registry
from barnabas.protocol.internal_topics import INTERNAL_TOPICS
from barnabas.testing.faults.rule import leaves, subjects
from barnabas.testing.faults.table import is_internal, mapped

NAMES_MAX: Final = 100  # of each kind in one event
# librdkafka asks for a coordinator behind its waiting Fetch. If the answer takes longer than its pause before a retry (100 ms), the
# retry of a commit makes it forget the coordinator again, until the session is over (librdkafka#3645). The application is not the cause.
FETCH_WAIT_MS_MAX: Final = 20

# What tells how far an application is: what it writes and reads, its groups, its transactions.
WATCHED: Final = frozenset(
    {
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "ConsumerGroupHeartbeat",
        "EndTxn",
        "Fetch",
        "InitProducerId",
        "OffsetCommit",
        "OffsetFetch",
        "Produce",
        "SyncGroup",
        "TxnOffsetCommit",
    }
)


class AuditWatch:
    """See the module.

    Args:
        changed: called when `active` has changed.

    Attributes:
        active: whether answers stop.
    """

    def __init__(
        self,
        topic_name: Callable[[bytes], str | None],
        emit: Callable[[str, Any], None],
        changed: Callable[[], None],
    ) -> None:
        self.active = False
        self._topic_name, self._emit, self._changed = topic_name, emit, changed
        self._stopped: dict[int, tuple[Pending[Any], Any, Call[Any], Route]] = {}  # number → slot, answer, request
        self._numbers = 0

    def begin(self, numbers_from: int) -> None:
        """Stops before answers from now on, and gives them numbers above `numbers_from`."""
        self._numbers, self.active = numbers_from, True
        self._changed()

    def end(self) -> None:
        """Stops no more; gives every answer that was stopped."""
        self.active = False
        self._changed()
        for number in list(self._stopped):
            self.decide(number, "given")

    def decide(self, number: int, answer: str) -> None:
        """What becomes of a stopped answer.

        Args:
            answer: "given"; "lost": the connection closes instead; else the name of an error, which replaces it.
        """
        found = self._stopped.pop(number, None)
        if found is None:
            return
        slot, response, call, route = found
        if answer == "lost":
            call.connection.close("the audit")
        elif answer == "given":
            slot.resolve(response)
        else:
            slot.resolve(route.refuse(call, BrokerError(ErrorCode[answer], "by the audit of the test kit")))

    def stop(self, serve: Serve, route: Route, call: Call[Any]) -> Any:
        """Interceptor of all requests while the audit watches."""
        if is_internal(call):
            return serve(route, call)
        api = registry.API[call.api_key].name
        if api not in WATCHED:
            return serve(route, call)
        if api == "Fetch":
            call.request.max_wait_ms = min(call.request.max_wait_ms, FETCH_WAIT_MS_MAX)
        about = subjects(call.request, self._topic_name)
        return mapped(serve(route, call), lambda answer: self._stop(route, api, about, call, answer))

    def _stop(self, route: Route, api: str, about: dict[str, set[Any]], call: Call[Any], answer: Any) -> Any:
        if not self.active or (answer is not None and _failed(answer)):
            return answer
        if api == "Fetch":
            places = _read(answer, self._topic_name)
            about |= {"topic": {topic for topic, _ in places}, "partition": {partition for _, partition in places}}
        if api == "OffsetFetch":  # only told
            self._tell(0, api, about, call)
            return answer
        if api in ("Fetch", "Produce") and not about["topic"] - INTERNAL_TOPICS:
            return answer
        if api == "InitProducerId" and not about["txn"]:
            return answer
        self._numbers += 1
        slot: Pending[Any] = Pending()
        self._stopped[self._numbers] = slot, answer, call, route
        self._tell(self._numbers, api, about, call)
        return slot

    def _tell(self, number: int, api: str, about: dict[str, set[Any]], call: Call[Any]) -> None:
        told = {kind: sorted(names - {""})[:NAMES_MAX] for kind, names in about.items()}
        self._emit("audit", {"number": number, "api": api, "connection": repr(call.connection), **told})


def _failed(answer: Any) -> bool:
    """Whether any part of an answer has an error."""
    return any(value for _, name, value in leaves(answer) if name.endswith("error_code"))


def _read(answer: Any, topic_name: Callable[[bytes], str | None]) -> set[tuple[str, int]]:
    """The partitions of a Fetch's answer that have records."""
    found = set()
    for topic in answer.responses:
        name = topic.topic or topic_name(topic.topic_id)
        found |= {(name, each.partition_index) for each in topic.partitions if name is not None and each.records}
    return found
