"""History: what the brokers of one cluster acknowledged and delivered; `kafka.history` in a test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.testing.errors import ADMIN_CLIENT_ID, KitError, unknown
from barnabas.testing.extension import Commands, Extension, settle
from barnabas.testing.history.core.events import Delivered, HistoryEvent, Produced, event_of
from barnabas.testing.history.core.evidence import Anomaly, Evidence, with_groups
from barnabas.testing.history.core.exactly_once import CommittedRecord, Key
from barnabas.testing.history.core.final_state import FinalState
from barnabas.testing.kit_thread import Aio, blocking, coroutine

if TYPE_CHECKING:
    from barnabas.testing.backend import Backend
    from barnabas.testing.history.log_reader import LogReader
    from barnabas.testing.history.recorder import Recorder
    from barnabas.testing.running import Running

EVENTS_MAX: Final = 200_000
BYTES_MAX: Final = 256 * 1024 * 1024
EVENT_BYTES: Final = 900  # of an event, about
PART_BYTES: Final = 150  # of each batch, record or partition in it
SEEN_EVERY: Final = 1_000
LAST_S: Final = 0.2  # a broker that is killed tells its last requests within this time
TRACE_S: Final = 5.0  # to read logs for a trace
READ_MS: Final = 5_000  # how long one request waits for a leader

E = TypeVar("E", bound=HistoryEvent)


class Ring:
    """The newest events in order of arrival. Thread-safe."""

    def __init__(self, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.forgotten = 0
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._events: deque[Mapping[str, Any]] = deque()

    def add(self, event: Mapping[str, Any]) -> None:
        """Drops the oldest events beyond the limits."""
        with self._lock:
            self._events.append(event)
            self._bytes += _size(event)
            while len(self._events) > self._events_max or self._bytes > self._bytes_max:
                self._bytes -= _size(self._events.popleft())
                self.forgotten += 1

    def events(self) -> list[Mapping[str, Any]]:
        with self._lock:
            return list(self._events)

    def clear(self) -> None:
        """Forgets everything, and that it has forgotten."""
        with self._lock:
            self._events.clear()
            self._bytes = self.forgotten = 0


def _size(event: Mapping[str, Any]) -> int:
    return EVENT_BYTES + PART_BYTES * sum(len(event.get(name, ())) for name in ("batches", "records", "offsets"))


def _key(record: CommittedRecord) -> Hashable:
    return record.key


class HistoryAio(Aio["History"]):
    """The methods of a history that ask brokers, as coroutines."""

    @coroutine
    async def check(self) -> list[Anomaly]:
        """Compares the events with what the brokers hold now, and returns the anomalies; an empty list: none was found.

        Call it when the application has finished. An anomaly has the name that Jepsen uses, for example "lost-write", and the events that
        are its evidence. "incomplete-history" says what could not be checked.
        """
        from barnabas.testing.history.core.checker import check

        history = self._of
        events = await history._events()
        topics = {each.topic for each in events if isinstance(each, (Produced, Delivered))}
        state = await history._final_state(topics)
        return check(events, state, history._ring.forgotten + history._lost)

    @coroutine
    async def assert_exactly_once(self, source: str, target: str, *, key: Key = _key) -> None:
        """Each committed record of one topic has exactly one committed record in the other one.

        `key`: what a record and its output have in common; called with records (`topic`, `partition`, `offset`, `key`, `value`) of both
        topics. Default: the record's key.

        Raises:
            AssertionError: records are missing, repeated or of unknown origin; the text tells what happened to them.
            KitError: a topic does not exist, or `key` fails.
        """
        wrong = await self._of.compared(source, target, key)
        if wrong:
            raise AssertionError(wrong)

    @coroutine
    async def events(self) -> tuple[HistoryEvent, ...]:
        """As `History.events`."""
        return await self._of._events()


class History(Extension):
    """Events of one cluster from the first use of `kafka.history`; the fixture `kafka_history` uses it before the test.

    Memory is bounded: beyond EVENTS_MAX events, or about BYTES_MAX bytes, the oldest are dropped and counted in `forgotten`.
    """

    _called = "kafka.history"

    def __init__(self, cluster: Running, level: str = "off") -> None:
        self._cluster = cluster
        self._ring = Ring()
        self.level = level
        self._recorders: dict[int, Recorder] = {}  # of brokers in this process, also of those that have ended
        self._last: dict[int, list[dict[str, Any]]] = {}  # of brokers in other processes, when they were killed
        self._numbers: dict[int, int] = {}  # by broker: number of the last event
        self._lost = 0  # events that a broker could not send
        self._confirmations: set[asyncio.Task[None]] = set()

    # -- for tests

    @property
    def events(self) -> tuple[HistoryEvent, ...]:
        """Everything that was recorded, in order for each broker; every request that was answered is in it."""
        self.settle()
        return self.arrived()

    def of(self, kind: type[E], **wanted: object) -> list[E]:
        """The events of one class of `barnabas.testing.history.core.events` whose attributes have the given values.

        Raises KitError: the class has no such attribute.
        """
        unknown_one = next((each for each in wanted if each not in kind.__dataclass_fields__), None)
        if unknown_one is not None:
            raise KitError(unknown(f"attribute of {kind.__name__}", unknown_one, kind.__dataclass_fields__))
        return [
            each
            for each in self.events
            if isinstance(each, kind) and all(getattr(each, name) == value for name, value in wanted.items())
        ]

    @property
    def forgotten(self) -> int:
        """How many events had no room any more; 0: the history is complete since it began."""
        self.settle()
        return self._ring.forgotten + self._lost

    def clear(self) -> None:
        """Forgets the events so far. What was written before is then unknown to `check`."""
        self.settle()
        self._ring.clear()
        self._lost = 0

    check = blocking(HistoryAio.check)
    assert_exactly_once = blocking(HistoryAio.assert_exactly_once)

    @property
    def aio(self) -> HistoryAio:
        """The methods that ask brokers, as coroutines."""
        return HistoryAio(self, self._cluster._limit_s)

    # -- for the kit

    def start(self, level: str = "all") -> None:
        """Records from now on."""
        self._cluster.wait(self.set_level(level))

    async def write(self, path: Path, header: Mapping[str, Any]) -> None:
        """Writes the events so far, with the steps and markers of transactions, to a file. Raises OSError."""
        from barnabas.testing.history.trace import write_trace

        events = await self._events()
        topics = {each.topic for each in events if isinstance(each, Produced)}
        try:
            async with asyncio.timeout(TRACE_S):
                state = await self._final_state(topics)
        except TimeoutError:
            state = FinalState(unread=(f"the brokers did not answer within {TRACE_S:g} s",))
        forgotten = self._ring.forgotten + self._lost
        write_trace(path, {**header, "forgotten": forgotten, "unread": state.unread}, events, state)

    @property
    def used(self) -> bool:
        """Whether there are events."""
        return bool(self._ring.events())

    @property
    def leaves_traces(self) -> bool:
        """As of Extension: a recorder begins anew for each test."""
        return False

    def begin_anew(self) -> None:
        """Forgets the events that are here, without asking the brokers: another test begins."""
        self._ring.clear()
        self._lost = 0

    async def _final_state(self, topics: set[str]) -> FinalState:
        from barnabas.client import KafkaError

        backend = self._cluster.core().backend
        states = {each: backend.state(each) for each in backend.broker_ids}
        if "running" not in states.values():
            told = ", ".join(f"broker {each} is {state}" for each, state in states.items())
            return FinalState(unread=(f"the brokers could not be asked: {told}",))
        try:
            async with self._reader() as reader:
                return await reader.final_state(topics)
        except KafkaError as error:
            return FinalState(unread=(f"the brokers could not be asked: {error}",))

    async def compared(self, source: str, target: str, key: Key) -> str:
        """What `assert_exactly_once` does, as a coroutine of the kit's thread; "" if all agree."""
        from barnabas.client import KafkaError
        from barnabas.testing.history.core.exactly_once import differences
        from barnabas.testing.history.core.group_checks import commits_of

        async with self._reader() as reader:
            known = await reader.list_topics()
            for each in (source, target):
                if each not in known:
                    raise KitError(unknown("topic", each, known))
            try:
                inputs = await reader.committed_records(source)
                outputs = await reader.committed_records(target)
            except KafkaError as error:
                raise KitError(f"the records of '{source}' and '{target}' could not be read: {error}") from error
        evidence = Evidence(await self._events())
        return differences(inputs, outputs, key, evidence, commits_of(evidence)[0])

    async def _events(self) -> tuple[HistoryEvent, ...]:
        await self.settled()
        return self.arrived()

    def _reader(self) -> LogReader:
        from barnabas.testing.history.log_reader import LogReader

        servers = self._cluster.core().backend.internal_servers
        return LogReader(bootstrap_servers=servers, client_id=ADMIN_CLIENT_ID, request_timeout_ms=READ_MS)

    async def set_level(self, level: str) -> None:
        """Tells every broker what to note, as a coroutine of the kit's thread."""
        self.level = level
        backend = self._cluster.backend("history")
        for each in backend.broker_ids:
            if backend.state(each) == "running":
                await backend.command(each, "history_level", self._arguments(backend))

    def _arguments(self, backend: Backend) -> dict[str, Any]:
        return {"level": self.level, **({"sink": self.take, "keep": self._keep} if backend.mode == "thread" else {})}

    def _keep(self, recorder: Recorder) -> None:
        self._recorders[recorder.broker_id] = recorder

    async def before_kill(self, broker_id: int) -> None:
        """As of Extension: a broker in a process of its own tells its last requests."""
        backend = self._cluster.backend("history")
        if self.level != "off" and backend.mode == "process" and backend.state(broker_id) == "running":
            with contextlib.suppress(TimeoutError, KitError):
                async with asyncio.timeout(LAST_S):
                    self._last[broker_id] = await backend.command(broker_id, "history_last", {})

    async def last_requests(self, broker_id: int) -> list[dict[str, Any]]:
        """The last requests of each client at one broker; of a broker that has ended, what is known of them."""
        from barnabas.testing.history.recorder import last_requests

        recorder = self._recorders.get(broker_id)
        if recorder is not None:
            return last_requests(recorder)
        backend = self._cluster.backend("history")
        if backend.state(broker_id) == "running":
            found: list[dict[str, Any]] = await backend.command(broker_id, "history_last", {})
            return found
        return self._last.get(broker_id, [])

    def before_start(self, broker_id: int) -> Commands:
        """As of Extension: a broker that starts again notes from its first request on."""
        self._numbers.pop(broker_id, None)
        return [("history_level", self._arguments(self._cluster.backend("history")))]

    async def on_resumed(self, broker_id: int) -> None:
        """As of Extension: the level may have changed in between."""
        backend = self._cluster.backend("history")
        await backend.command(broker_id, "history_level", self._arguments(backend))

    def on_event(self, broker_id: int, name: str, value: Any) -> None:
        """As of Extension."""
        if name == "history":
            self._on_noted(value)

    def _on_noted(self, event: Mapping[str, Any]) -> None:
        """A broker in a process of its own has sent an event, in the kit's thread. It keeps what is not confirmed."""
        self.take(event)
        if event["number"] % SEEN_EVERY == 0:
            task = asyncio.get_running_loop().create_task(
                self._confirm(self._cluster.backend("history"), event["broker"])
            )
            self._confirmations.add(task)
            task.add_done_callback(self._confirmed)

    def _confirmed(self, task: asyncio.Task[None]) -> None:
        self._confirmations.discard(task)
        if not task.cancelled():
            task.exception()  # the broker ended before it answered

    def arrived(self) -> tuple[HistoryEvent, ...]:
        """The events that are here."""
        return with_groups([event_of(each) for each in self._ring.events()])

    def take(self, event: Mapping[str, Any]) -> None:
        """A broker has noted something: called in the kit's thread, or in a broker's of this process."""
        broker_id, number = event["broker"], event["number"]
        last = self._numbers.get(broker_id, 0)
        self._lost += max(0, number - last - 1)
        self._numbers[broker_id] = number
        self._ring.add(event)

    def settle(self) -> None:
        """Returns when the events of all answered requests are here. A cluster that has ended sends no more."""
        settle(self._cluster.wait, self.settled())

    async def settled(self) -> None:
        """What `settle` does, as a coroutine of the kit's thread."""
        backend = self._cluster.core().backend
        for each in backend.broker_ids:
            if backend.state(each) == "running":
                await self._confirm(backend, each)

    async def _confirm(self, backend: Backend, broker_id: int) -> None:
        told = await backend.command(broker_id, "history_seen", {"number": self._numbers.get(broker_id, 0)})
        last = self._numbers.get(broker_id, 0)
        self._lost += max(0, told["noted"] - last)
        self._numbers[broker_id] = max(told["noted"], last)
