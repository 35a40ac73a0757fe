"""Named points in the life of a batch where a process can be held or killed, in whichever process gets there.

Armed by files in the folder CHAOS_DIR: `armed/QUERY/POINT` holds an action and how many times the point is passed
before. Whoever gets there takes the file (one process only: it is renamed) and leaves `at/QUERY/POINT` with its process
id. `die` is SIGKILL of that process, at once; `hold` waits there until `released/QUERY/POINT` comes, which may be
never: then the test kills its driver.

The points of the sink are put around its methods when this module is imported, as it is wherever `ChaosDataSource` is
unpickled. A query is known by its sink id.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

from barnabas.pipeline.decision_record import PreparedPart
from barnabas.pipeline.decisions import CommitDecision, CommitHandle, Fence, TaskName
from barnabas.pipeline.sink import SinkMessage, StreamSink
from barnabas.pipeline.spark import BarnabasDataSource
from barnabas.pipeline.topic_sink import TopicPart, TopicSink
from barnabas.pipeline.two_phase_commit import CommitCoordinator, Part, Task

FOLDER = "CHAOS_DIR"
LOOK_SECONDS = 0.02

_passed: Counter[tuple[str, str, int]] = Counter()
_deciding: WeakSet[CommitCoordinator] = WeakSet()  # those that have decided a batch


def is_armed(point: str, query: str) -> bool:
    """Whether somebody is to be held or to die there."""
    return FOLDER in os.environ and (Path(os.environ[FOLDER]) / "armed" / query / point).exists()


def reached(point: str, query: str) -> None:
    """A process is at the point."""
    if not is_armed(point, query):
        return
    folder = Path(os.environ[FOLDER])
    armed = folder / "armed" / query / point
    taken = armed.with_name(f".{point}.{os.getpid()}")
    try:
        order = json.loads(armed.read_text())
        key = (query, point, armed.stat().st_mtime_ns)
        _passed[key] += 1
        if _passed[key] <= order["after"]:
            return
        armed.rename(taken)
    except FileNotFoundError:
        return  # another process has taken it
    where = folder / "at" / query / point
    where.parent.mkdir(parents=True, exist_ok=True)
    taken.write_text(json.dumps({**order, "pid": os.getpid()}))
    if order["action"] == "hold" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a daemon that ends: its workers are held, as if far away
    taken.rename(where)
    if order["action"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    released = folder / "released" / query / point
    while not released.exists():
        time.sleep(LOOK_SECONDS)
    released.unlink()


_begin, _write, _pre_commit = TopicSink.begin, TopicPart.write, TopicSink.pre_commit
_perform, _commit, _task = CommitCoordinator.perform, StreamSink.commit, StreamSink._write_exactly_once


async def begin(self: TopicSink, task: Task) -> TopicPart:
    reached("task begins", self.sink_id)  # it has read the decision, and has no transaction yet
    return await _begin(self, task)


async def write(self: TopicPart, batch: Any) -> None:
    query = self.task.sink_id
    if is_armed("task writes", query):
        await self.producer.flush()  # what was written before is in the log
    reached("task writes", query)
    await _write(self, batch)


async def pre_commit(self: TopicSink, part: Part) -> PreparedPart:
    reached("task prepares", self.sink_id)
    handle = await _pre_commit(self, part)
    reached("task is prepared", self.sink_id)
    return handle


async def perform(self: CommitCoordinator, effect: Any) -> Any:
    if isinstance(effect, CommitDecision):
        reached("before the decision", self.sink_id)
    if isinstance(effect, CommitHandle):  # when a batch starts, that of the batch before is repeated
        reached("phase two" if self in _deciding else "phase two is repeated", self.sink_id)
    answer = await _perform(self, effect)
    if isinstance(effect, CommitDecision):
        reached("after the decision", self.sink_id)
        _deciding.add(self)
    if isinstance(effect, Fence):
        reached("driver has fenced", self.sink_id)
    return answer


def commit(self: StreamSink, messages: Any, batchId: int) -> None:
    _commit(self, messages, batchId)
    reached("before Spark's log", self.options.sink_id)


async def twins(self: StreamSink, batches: Iterator[Any], name: TaskName, batch: int, query: str) -> SinkMessage:
    """Runs a task and, if armed, a second attempt of it, as speculation does; returns the result of one of them."""
    if not is_armed("twin", self.options.sink_id):
        return await _task(self, batches, name, batch, query)
    rows = list(batches)
    other = name._replace(unique=name.unique + 1_000_000)
    found = await asyncio.gather(
        _task(self, iter(rows), name, batch, query),
        _task(self, iter(rows), other, batch, query),
    )
    return found[(name.partition + batch) % 2]


# Each of these processes belongs to a test; setattr, since mypy takes no assignment to a method.
for _owner, _name, _method in (
    (TopicSink, "begin", begin),
    (TopicPart, "write", write),
    (TopicSink, "pre_commit", pre_commit),
    (CommitCoordinator, "perform", perform),
    (StreamSink, "commit", commit),
    (StreamSink, "_write_exactly_once", twins),
):
    setattr(_owner, _name, _method)


class ChaosDataSource(BarnabasDataSource):
    """`barnabas` with these points, under a name of its own."""

    @classmethod
    def name(cls) -> str:
        return "chaos"
