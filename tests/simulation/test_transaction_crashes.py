"""Crash matrix: the broker dies at every log write of a transaction's life, and every promise is then held against what is left.

For each write of a `.log` file between the begin of a transaction and its completion (partitions, offsets, coordinator's log,
markers): the broker dies just before or just after it, by a kill (the page cache stays) or by a power cut (flush.messages=1,
unsynced bytes are lost or torn), while the client lives on and retries, or dies with it. Then the broker starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from barnabas.client.types import TransactionVersion
from barnabas.ports import Buffer, File
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.three_transactions import NEVER, ThreeTransactions
from tests.support.simulation.workload import BOOTSTRAP, Broker

pytestmark = pytest.mark.simulation

TIMEOUT_MS = 5_000


class Tripwire:
    """Counts writes of log files once armed, and pulls at the one it is set to."""

    def __init__(self, at: int, *, after: bool, pull: Callable[[], None]) -> None:
        self.at = at
        self.after = after
        self.armed = False
        self.pulled = False
        self.paths: list[str] = []
        self._pull = pull

    def write(self, write: Callable[[], None], path: str) -> None:
        if not self.armed or self.pulled or not path.endswith(".log"):
            write()
            return
        self.paths.append(path)
        if len(self.paths) <= self.at:
            write()
            return
        self.pulled = True
        if self.after:
            write()
            self._pull()
        else:
            self._pull()
            write()  # raises: the process is dead


class WiredFile:
    """A file whose writes go over a tripwire."""

    def __init__(self, wire: Tripwire, inner: File) -> None:
        self._wire = wire
        self.inner = inner

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._wire.write(lambda: self.inner.pwrite(data, offset), self.inner.path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WiredDisk:
    """A disk whose files are wired."""

    def __init__(self, wire: Tripwire, inner: Any) -> None:
        self._wire = wire
        self._inner = inner

    def open(self, path: str, *, create: bool = False) -> WiredFile:
        return WiredFile(self._wire, self._inner.open(path, create=create))

    def handle(self, path: str) -> WiredFile:
        return WiredFile(self._wire, self._inner.handle(path))

    async def sync(self, files: Sequence[Any]) -> None:
        await self._inner.sync([file.inner for file in files])

    def sync_now(self, files: Sequence[Any]) -> None:
        self._inner.sync_now([file.inner for file in files])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Crash:
    """One run: where it dies, and what the client knows."""

    def __init__(
        self,
        world: World,
        at: int,
        *,
        commit: bool,
        version: TransactionVersion,
        power: bool,
        after: bool,
        client_dies: bool,
    ) -> None:
        self.world = world
        self.story = ThreeTransactions(
            BOOTSTRAP, commit=commit, version=version, timeout_ms=TIMEOUT_MS, arm=self.arm, after_s=1
        )
        self.client_dies = client_dies
        self.machine = world.machine("broker")
        self.wire = Tripwire(at, after=after, pull=self.machine.lose_power if power else self.machine.kill)
        self.broker = Broker(**({"log.flush.interval.messages": "1"} if power else {}))
        self.done = False
        self.second_is_seen = False

    async def serve(self, ports: Ports) -> None:
        await self.broker(replace(ports, disk=WiredDisk(self.wire, ports.disk)))  # type: ignore[arg-type]

    def arm(self, armed: bool) -> None:
        self.wire.armed = armed

    async def client(self, ports: Ports) -> None:
        await self.story.client(ports)
        self.done = True

    async def run(self) -> None:
        self.machine.start(self.serve)
        await asyncio.sleep(1)
        worker = self.world.machine("worker")
        worker.start(self.client)
        for _ in range(6_000):
            await asyncio.sleep(0.02)
            if self.wire.pulled and self.machine.process is None:
                if self.client_dies:
                    worker.kill()
                    self.done = True
                await asyncio.sleep(0.5)
                self.machine.start(self.serve)
            if self.done:
                break
        assert self.done, "the client never came to its end"
        await asyncio.sleep(3 * TIMEOUT_MS / 1000)
        await self.world.machine("judge").start(self.judge)

    async def judge(self, ports: Ports) -> None:
        self.second_is_seen = await self.story.judge(ports, third=not (self.client_dies and self.wire.pulled))


def run_crash(at: int, seed: int = 7, **how: Any) -> Crash:
    """One world with one crash."""
    with World(seed) as world:
        crash = Crash(world, at, **how)
        world.run(crash.run(), time_limit_s=3600)
        return crash


def writes_of_a_life(commit: bool, version: TransactionVersion) -> list[str]:
    """The log files written in the life of a transaction, in order."""
    crash = run_crash(NEVER, commit=commit, version=version, power=False, after=False, client_dies=False)
    return crash.wire.paths


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_what_is_written_in_the_life_of_a_transaction(commit: bool, version: TransactionVersion) -> None:
    folders = [path.split("/")[-2].rsplit("-", 1)[0] for path in writes_of_a_life(commit, version)]
    # PREPARE and COMPLETE, and what was added: each partition by its own request, as the producer comes to it.
    assert folders.count("__transaction_state") == 3 + 2
    assert folders.count("output") == 4  # a record and a marker on two partitions
    assert folders.count("__consumer_offsets") == 2


@pytest.mark.parametrize(
    ("power", "client_dies"),
    [(False, True), (True, False), *(pytest.param(both, both, marks=pytest.mark.soak) for both in (False, True))],
    ids=["kill-client-dies", "power-client-lives", "kill-client-lives", "power-client-dies"],
)
@pytest.mark.parametrize("version", [1, 2], ids=["tv1", "tv2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_dies_at_every_write(commit: bool, version: TransactionVersion, power: bool, client_dies: bool) -> None:
    writes = writes_of_a_life(commit, version)
    prepare = [at for at, path in enumerate(writes) if "__transaction_state" in path][-2]
    seen = []
    for at in range(len(writes)):
        for after in (False, True):
            try:
                crash = run_crash(at, commit=commit, version=version, power=power, after=after, client_dies=client_dies)
            except BaseException as failure:
                failure.add_note(f"died {'after' if after else 'before'} write {at} of {len(writes)}")
                raise
            assert crash.wire.pulled
            seen.append(crash.second_is_seen)
    if not commit:
        assert not any(seen)
    elif client_dies and not power:  # PREPARE_COMMIT in the log is what decides
        assert seen == [False] * (2 * prepare + 1) + [True] * (2 * (len(writes) - prepare) - 1)
    elif not client_dies:  # the client asks again until it is committed, once its commit was asked for
        assert all(seen[2 * prepare :])
