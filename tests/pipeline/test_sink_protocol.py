"""The sink's two known holes and its other narrow places, made to happen on purpose: its writers without Spark, on real brokers.

What Spark does is done here by hand: a writer is started as its pickling does, tasks write, another writer commits. On Barnabas,
with transactions that wait for ever, and on a real Kafka, where their timeout runs on.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

import pyarrow as pa
import pyarrow.parquet as parquet

from barnabas.client import Admin
from barnabas.client.errors import KafkaError
from barnabas.pipeline.decision_record import BatchDecision, PreparedPart
from barnabas.pipeline.decisions import (
    CommitDecision,
    CommitHandle,
    DriverReplaced,
    Fence,
    HalfCommitted,
    TaskMessage,
    TaskName,
)
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.sink import SinkMessage, StreamSink
from barnabas.pipeline.sink_options import SinkOptions
from barnabas.pipeline.sinks import SinkAdmin
from barnabas.pipeline.topic_sink import TopicPart, TopicSink
from barnabas.pipeline.transaction_requests import TransactionRequests
from barnabas.pipeline.two_phase_commit import CommitCoordinator, Task
from tests.support.oracle.real_kafka import needs_java
from tests.support.pipeline.topics import await_markers, new_topic, read_committed
from tests.support.processes.cluster import Cluster, Node, barnabas_nodes, kafka_nodes

SETTINGS = ("group.initial.rebalance.delay.ms=0", "transaction.abort.timed.out.transaction.cleanup.interval.ms=200")
ENDING = ("PrepareCommit", "PrepareAbort")
TIMEOUT_MS = 1_000
PREPARED_MS = 2_500  # longer than a batch takes up to its decision on a busy machine
COLUMNS = [("key", "binary"), ("value", "binary")]
PARTITIONS = 2


@pytest.fixture(scope="module", params=["barnabas", "barnabas V1", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker of Barnabas, also with transactions V1 (as of Kafka 3.9), or one real Kafka."""
    folder: Path = tmp_path_factory.mktemp("brokers")
    nodes: list[Node]
    if request.param == "kafka":
        needs_java()
        nodes = list(kafka_nodes(folder, *SETTINGS, count=1))
    else:
        nodes = list(barnabas_nodes(folder, *SETTINGS, count=1))
    with Cluster(nodes) as running:
        if request.param == "barnabas V1":
            asyncio.run(set_transaction_version(running.bootstrap, 1))
        yield running.bootstrap


async def set_transaction_version(bootstrap: str, level: int) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.update_features({"transaction.version": level}, downgrade="unsafe")


class Lab:
    """One sink id with its output, and rows that know their number."""

    def __init__(self, bootstrap: str, folder: Path, **more: str) -> None:
        self.bootstrap = bootstrap
        self.topic = new_topic(bootstrap, PARTITIONS)
        self.files = folder / "files"
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": self.topic,
            "sink.id": f"s-{uuid.uuid4().hex[:8]}",
            "files.path": str(self.files),
            **more,
        }
        self.attempts = 0

    def sink(self, kind: type[StreamSink] = StreamSink, /, **more: str) -> StreamSink:
        return kind(SinkOptions.parse({**self.options, **more}, streaming=True), COLUMNS)

    async def started(self, kind: type[StreamSink] = StreamSink, /, **more: str) -> StreamSink:
        sink = self.sink(kind, **more)
        await sink._start()
        return sink

    async def task(
        self,
        sink: StreamSink,
        numbers: range,
        *,
        batch: int = 0,
        partition: int = 0,
        query: str = "q",
    ) -> SinkMessage:
        self.attempts += 1
        rows = pa.record_batch(
            {"key": [b"%d" % n for n in numbers], "value": [b"%d" % n for n in numbers]},
            schema=pa.schema({"key": pa.binary(), "value": pa.binary()}),
        )
        name = TaskName(partition, self.attempts)
        return await sink._write_exactly_once(iter([rows]), name, batch, query)

    def output(self) -> list[int]:
        return sorted(int(m.value() or b"-1") for m in read_committed(self.bootstrap, self.topic, PARTITIONS))

    def rows_in_files(self) -> list[int]:
        return sorted(
            int(value)
            for path in self.files.glob("*.parquet")
            for value in parquet.read_table(path)["value"].to_pylist()
        )

    async def open_transactions(self, *states: str) -> list[str]:
        states = states or ("Ongoing", *ENDING)
        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            found = await admin.list_transactions(states=states)
        return [t.transactional_id for t in found if t.transactional_id.startswith(self.options["sink.id"])]

    async def check(self, expected: range) -> None:
        """Every row is there once, in topics and files, and nothing is open."""
        await_markers(self.bootstrap)
        assert await self.open_transactions() == []
        assert self.output() == list(expected)
        assert self.rows_in_files() == list(expected)
        assert [path.name for path in (self.files / "_staging").glob("*.parquet")] == []


@pytest.fixture
def lab(bootstrap: str, tmp_path: Path) -> Lab:
    return Lab(bootstrap, tmp_path)


class Dies(Exception):
    """Stands for SIGKILL: nothing of the driver runs after it."""


def dying(when: Callable[[Any], bool], *, passed: int = 0) -> type[StreamSink]:
    """A sink whose driver dies where an effect is about to be performed, after so many others of the kind."""
    left = passed

    class DyingCoordinator(CommitCoordinator):
        async def perform(self, effect: Any) -> Any:
            nonlocal left
            if when(effect):
                if left == 0:
                    raise Dies
                left -= 1
            return await super().perform(effect)

    class DyingSink(StreamSink):
        def coordinator(self, requests: TransactionRequests) -> CommitCoordinator:
            options = self.options
            return DyingCoordinator(options.sink_id, requests, self.participants(requests), forgotten=options.forgotten)

    return DyingSink


class HeldSink(StreamSink):
    """Its tasks wait after they have read the decision, before they have a transaction."""

    reached: asyncio.Event
    released: asyncio.Event

    def topic_sink(self, found: TopicSink) -> TopicSink:
        begin: Callable[[Task], Awaitable[TopicPart]] = found.begin

        async def held(task: Task) -> TopicPart:
            self.reached.set()
            await self.released.wait()
            return await begin(task)

        found.begin = held  # type: ignore[method-assign]  # the point where this zombie is held
        return found

    def participants(self, requests: TransactionRequests) -> list[Any]:
        return [self.topic_sink(p) if isinstance(p, TopicSink) else p for p in super().participants(requests)]


async def test_a_zombie_task_cannot_abort_what_was_decided_later(lab: Lab) -> None:
    """Hole 1: a task of a dead driver calls InitProducerId between the successor's decision and its phase two."""
    dead = await lab.started(HeldSink)
    assert isinstance(dead, HeldSink)
    dead.reached, dead.released = asyncio.Event(), asyncio.Event()
    zombie = asyncio.create_task(lab.task(dead, range(5)))
    await dead.reached.wait()

    successor = await lab.started()
    messages = [await lab.task(successor, range(3)), await lab.task(successor, range(3, 5), partition=1)]
    with pytest.raises(Dies):
        await lab.sink(dying(lambda e: isinstance(e, CommitHandle)))._commit(0, messages)
    dead.released.set()
    with pytest.raises(PipelineError, match="twin"):
        await zombie
    await lab.sink()._commit(0, messages)
    await lab.check(range(5))


async def test_a_replaced_driver_cannot_decide(lab: Lab) -> None:
    """Hole 2: both have the same batch prepared; only the newer one may decide, whoever comes first."""
    old = await lab.started()
    stale = [await lab.task(old, range(4)), await lab.task(old, range(4, 6), partition=1)]
    new = await lab.started()
    fresh = [await lab.task(new, range(2)), await lab.task(new, range(2, 6), partition=1)]
    with pytest.raises(DriverReplaced, match="another driver"):
        await lab.sink()._commit(0, stale)
    await lab.sink()._abort(0, stale)
    await lab.sink()._commit(0, fresh)
    await lab.sink()._abort(0, stale)
    await lab.check(range(6))


async def test_two_queries_with_one_sink_id_do_not_both_write(lab: Lab) -> None:
    first = await lab.started()
    await lab.sink()._commit(0, [await lab.task(first, range(3), query="one")])
    second = await lab.started()
    with pytest.raises(PipelineError, match="belongs to query one"):
        await lab.task(second, range(3, 6), query="two")
    await lab.check(range(3))


async def test_who_takes_the_id_of_a_live_query_is_refused_and_the_live_one_goes_on_when_started_again(
    lab: Lab,
) -> None:
    """Where checkpoints cannot be read the intruder is known by its tasks only, when its driver has taken the epoch: the live
    query's batch ends with words."""
    await lab.sink()._commit(0, [await lab.task(await lab.started(), range(3), query="one")])
    batch = [await lab.task(await lab.started(), range(3, 6), batch=1, query="one")]
    intruder = await lab.started()
    with pytest.raises(PipelineError, match=r"option 'sink.id' = .* belongs to query one.*give each query a sink id"):
        await lab.task(intruder, range(6, 9), query="two")
    with pytest.raises(DriverReplaced, match="another driver"):
        await lab.sink()._commit(1, batch)
    await lab.sink()._abort(1, batch)
    await lab.check(range(3))
    await lab.sink()._commit(1, [await lab.task(await lab.started(), range(3, 6), batch=1, query="one")])
    await lab.check(range(6))


async def test_who_takes_the_id_of_a_live_query_is_refused_before_that_is_disturbed(lab: Lab, tmp_path: Path) -> None:
    def checkpoint(query: str) -> dict[str, str]:
        """As Spark writes it before the first batch."""
        folder = tmp_path / "checkpoints" / query
        folder.mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": query}))
        return {"checkpointLocation": f"file://{folder}"}

    own = checkpoint("one")
    await lab.sink()._commit(0, [await lab.task(await lab.started(**own), range(3), query="one")])
    batch = [await lab.task(await lab.started(**own), range(3, 6), batch=1, query="one")]
    with pytest.raises(PipelineError, match=r"option 'sink.id' = .* belongs to query one.*give each query a sink id"):
        await lab.started(**checkpoint("two"))
    await lab.sink()._commit(1, batch)
    await lab.check(range(6))


async def test_a_driver_that_died_in_phase_two_is_completed_by_its_successor(lab: Lab) -> None:
    sink = await lab.started()
    messages = [await lab.task(sink, range(3)), await lab.task(sink, range(3, 5), partition=1)]
    with pytest.raises(Dies):
        await lab.sink(dying(lambda e: isinstance(e, CommitHandle), passed=1))._commit(0, messages)
    assert 0 < len(lab.output()) + len(lab.rows_in_files()) < 10, "a part is visible, another is not"

    successor = await lab.started()
    await lab.check(range(5))
    again = [await lab.task(successor, range(2)), await lab.task(successor, range(2, 5), partition=1)]
    assert [message.task and message.task.handles for message in again] == [(), ()], "their input is passed over"
    await lab.sink()._commit(0, again)
    await lab.check(range(5))


async def test_abort_after_the_decision_commits(lab: Lab) -> None:
    """Spark calls abort when commit raises, whatever was decided by then."""
    sink = await lab.started()
    messages = [await lab.task(sink, range(3)), await lab.task(sink, range(3, 5), partition=1)]
    with pytest.raises(Dies):
        await lab.sink(dying(lambda e: isinstance(e, CommitHandle)))._commit(0, messages)
    await lab.sink()._abort(0, [*messages, None])
    await lab.check(range(5))


async def test_a_driver_that_died_before_the_decision_leaves_nothing(lab: Lab) -> None:
    sink = await lab.started()
    await lab.task(sink, range(3))
    await lab.task(sink, range(3, 5), partition=1)
    assert len(await lab.open_transactions()) == 2
    successor = await lab.started()
    await lab.check(range(0))
    await lab.sink()._commit(0, [await lab.task(successor, range(7))])
    await lab.check(range(7))


async def test_of_twins_one_counts(lab: Lab) -> None:
    sink = await lab.started()
    first, second = await asyncio.gather(lab.task(sink, range(5)), lab.task(sink, range(5)))
    await lab.sink()._commit(0, [second])
    await lab.check(range(5))
    assert first.task is not None


def key_of(message: SinkMessage) -> str:
    """The transactional id of a task."""
    assert message.task is not None
    return message.task.handles[0].key


async def reuses(lab: Lab) -> bool:
    """Whether the cluster has transactions V2."""
    async with lab.sink().connected() as cluster:
        return await TransactionRequests(cluster).version() >= 2


async def test_the_next_batches_reuse_transactional_ids(lab: Lab) -> None:
    """Also after a batch without rows in the partition, and in a new driver; not without V2."""
    used = set()
    for batch, partition in enumerate([0, 1, 0, 0]):
        message = await lab.task(await lab.started(), range(batch, batch + 1), batch=batch, partition=partition)
        used |= {key_of(message)} if partition == 0 else set()
        await lab.sink()._commit(batch, [message])
    await lab.check(range(4))
    assert len(used) == (1 if await reuses(lab) else 3)


async def test_a_zombie_of_the_batch_before_writes_in_no_later_one(lab: Lab) -> None:
    """It wakes with its slot while a task of the next batch, or of its successor, writes and is prepared."""
    messages = [await lab.task(await lab.started(), range(2))]
    await lab.sink()._commit(0, messages)
    dead = await lab.started(HeldSink)
    assert isinstance(dead, HeldSink)
    dead.reached, dead.released = asyncio.Event(), asyncio.Event()
    zombie = asyncio.create_task(lab.task(dead, range(2, 4), batch=1))
    await dead.reached.wait()
    message = await lab.task(await lab.started(), range(2, 4), batch=1)
    assert (key_of(message) == key_of(messages[0])) == await reuses(lab)
    with pytest.raises(Dies):
        await lab.sink(dying(lambda e: isinstance(e, CommitHandle)))._commit(1, [message])
    dead.released.set()
    with pytest.raises(PipelineError, match="twin"):
        await zombie
    later = await lab.task(await lab.started(), range(4, 6), batch=2)
    await lab.sink()._commit(2, [later])
    await lab.check(range(6))


async def test_a_zombie_that_has_the_slot_leaves_it_to_nobody(lab: Lab) -> None:
    """It is prepared when the successor's task of the same batch begins, and its driver aborts when that is prepared, too."""
    await lab.sink()._commit(0, [await lab.task(await lab.started(), range(2))])
    old = await lab.started()
    stale = await lab.task(old, range(2, 4), batch=1)
    new = await lab.started()
    fresh = await lab.task(new, range(2, 4), batch=1)
    assert key_of(fresh) != key_of(stale)
    await lab.sink()._abort(1, [stale, None])
    await lab.sink()._commit(1, [fresh])
    for batch in (2, 3):
        await lab.sink()._commit(
            batch, [await lab.task(await lab.started(), range(2 * batch, 2 * batch + 2), batch=batch)]
        )
    await lab.check(range(8))


async def test_an_older_driver_does_not_abort_what_a_newer_ones_task_has_in_the_slot(lab: Lab) -> None:
    await lab.sink()._commit(0, [await lab.task(await lab.started(), range(2))])
    old = await lab.started()
    new = await lab.started()
    fresh = await lab.task(new, range(2, 4), batch=1)
    assert old.start is not None
    lost = SinkMessage(0, TaskMessage(old.start.driver, "q", ()))
    await lab.sink()._abort(1, [lost, None])
    await lab.sink()._commit(1, [fresh])
    await lab.check(range(4))


async def test_a_killed_task_in_a_slot_is_aborted_with_its_batch(lab: Lab) -> None:
    """It has sent no message; another task of the batch has."""
    await lab.sink()._commit(0, [await lab.task(await lab.started(), range(2))])
    sink = await lab.started()
    await lab.task(sink, range(2, 4), batch=1)  # its message is lost
    other = await lab.task(sink, range(4, 6), batch=1, partition=1)
    await lab.sink()._abort(1, [None, other])
    await lab.check(range(2))


async def test_a_stale_slot_costs_an_attempt_and_no_more(lab: Lab) -> None:
    """Something else has raised the epoch of its transactional id: the first attempt fails, the next one takes a new id."""
    message = await lab.task(await lab.started(), range(2))
    await lab.sink()._commit(0, [message])
    sink = await lab.started()
    async with sink.connected() as cluster:
        await TransactionRequests(cluster).fence(key_of(message), transaction_timeout_ms=60_000)
    if await reuses(lab):
        with pytest.raises(KafkaError):
            await lab.task(sink, range(2, 4), batch=1)
    again = await lab.task(sink, range(2, 4), batch=1)
    assert key_of(again) != key_of(message)
    await lab.sink()._commit(1, [again])
    await lab.check(range(4))


async def test_an_abandoned_sink_is_ended_except_for_what_is_decided(lab: Lab) -> None:
    sink_id = lab.options["sink.id"]
    sink = await lab.started()
    messages = [await lab.task(sink, range(3)), await lab.task(sink, range(3, 5), partition=1)]
    orphan = await lab.task(sink, range(3))
    with pytest.raises(Dies):
        await lab.sink(dying(lambda e: isinstance(e, CommitHandle)))._commit(0, messages)
    async with SinkAdmin(bootstrap_servers=lab.bootstrap) as admin:
        (found,) = [each for each in await admin.list_sinks() if each.sink_id == sink_id]
        assert found.decision is not None
        assert (found.decision.next_batch, found.decision.query) == (1, "q")
        decided = {each.transactional_id: found.is_decided(each) for each in found.open}
        assert decided == {key_of(messages[0]): True, key_of(messages[1]): True, key_of(orphan): False}
        assert {tp.topic for each in found.open for tp in each.partitions} >= {lab.topic}
        aborted, kept = await admin.abandon_sink(sink_id)
        assert [part.key for part in aborted] == [key_of(orphan)]
        assert {part.key for part in kept} == {key_of(message) for message in messages}
    await lab.started()
    await lab.check(range(5))


async def test_a_running_query_cannot_decide_what_was_abandoned(lab: Lab) -> None:
    sink = await lab.started()
    messages = [await lab.task(sink, range(3))]
    async with SinkAdmin(bootstrap_servers=lab.bootstrap) as admin:
        assert lab.options["sink.id"] in await admin.open_of_sinks()
        aborted, kept = await admin.abandon_sink(lab.options["sink.id"])
        assert ([part.key for part in aborted], kept) == ([key_of(messages[0])], [])
    with pytest.raises(DriverReplaced):
        await lab.sink()._commit(0, messages)
    await lab.sink()._abort(0, messages)
    await lab.sink()._commit(0, [await lab.task(await lab.started(), range(3))])
    await lab.check(range(3))


async def test_a_decision_about_thousands_of_tasks_is_kept_whole(lab: Lab) -> None:
    """It is longer than an offset's metadata may be."""
    sink = await lab.started()
    assert sink.start is not None
    async with sink.connected() as cluster:
        coordinator = sink.coordinator(TransactionRequests(cluster))
        handles = tuple(
            PreparedPart("topics", f"s.{n * 7919}-1.{n}.{n * 31}", f"{n * 104729}-3", n) for n in range(2_000)
        )
        decision = BatchDecision(1, "q", sink.start.driver, handles)
        assert len(decision.encode()) > 5
        assert await coordinator.perform(CommitDecision(decision))
        assert await coordinator.read_decision() == decision
        await coordinator.perform(Fence())
        assert not await coordinator.perform(CommitDecision(decision._replace(next_batch=2))), (
            "another has begun a batch"
        )
        assert await coordinator.read_decision() == decision


@pytest.mark.parametrize("bootstrap", ["barnabas"], indirect=True)
async def test_with_two_phase_commit_a_long_outage_loses_nothing(bootstrap: str, tmp_path: Path) -> None:
    lab = Lab(bootstrap, tmp_path, **{"transaction.timeout.ms": str(TIMEOUT_MS)})
    sink = await lab.started()
    assert sink.two_phase
    messages = [await lab.task(sink, range(3)), await lab.task(sink, range(3, 5), partition=1)]
    with pytest.raises(Dies):
        await lab.sink(dying(lambda e: isinstance(e, CommitHandle), passed=1))._commit(0, messages)
    await asyncio.sleep(2 * TIMEOUT_MS / 1000)
    await lab.started()
    await lab.check(range(5))


async def test_without_it_a_long_outage_stops_loudly(bootstrap: str, tmp_path: Path) -> None:
    more = {"transaction.timeout.ms": str(PREPARED_MS), "two.phase.commit": "false"}
    lab = Lab(bootstrap, tmp_path, **more)
    sink = await lab.started()
    messages = [await lab.task(sink, range(3)), await lab.task(sink, range(3, 5), partition=1)]
    with pytest.raises(Dies):  # the first topic part and the first file are committed
        await lab.sink(dying(lambda e: isinstance(e, CommitHandle), passed=2))._commit(0, messages)
    deadline = asyncio.get_running_loop().time() + 60
    while await lab.open_transactions():
        assert asyncio.get_running_loop().time() < deadline, "the coordinator does not abort it"
        await asyncio.sleep(0.1)
    for _ in range(2):
        with pytest.raises(HalfCommitted, match=r"batch 0 .* 1 of its 4 parts \(2 rows\).* sink\.forget = 1"):
            await lab.started()
    assert lab.output() == [0, 1, 2]
    assert lab.rows_in_files() == [0, 1, 2, 3, 4]
    accepted = await lab.started(**{"sink.forget": "1"})
    again = await lab.task(accepted, range(5))
    await lab.sink(**{"sink.forget": "1"})._commit(0, [again])
    await lab.sink()._commit(1, [await lab.task(await lab.started(**{"sink.forget": "1"}), range(5, 7), batch=1)])
    assert lab.output() == [0, 1, 2, 5, 6]
    await lab.started()
    assert await lab.open_transactions() == []
