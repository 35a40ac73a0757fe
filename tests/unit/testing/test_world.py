"""World: one seed one history; crashes cut the ports first; disks survive as the machine's fate says."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from typing import cast

import pytest

from barnabas.testing.simulation.world import Ports, World, WorldFailed


class Line(asyncio.Protocol):
    """Answers every byte with its place in the journal on disk, after it is synced."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.journal = ports.disk.open("journal", create=True)
        self.tasks: dict[asyncio.Task[None], None] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for byte in data:
            place = self.journal.size()
            self.journal.pwrite(bytes([byte]), place)
            task = asyncio.get_running_loop().create_task(self.answer(place))
            self.tasks[task] = None

    async def answer(self, place: int) -> None:
        await self.ports.disk.sync([self.journal])
        self.transport.write(bytes([place % 256]))


class Answers(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


async def journal_server(ports: Ports) -> None:
    await ports.network.listen(lambda: Line(ports), "", 7)
    await asyncio.Event().wait()


async def toy(world: World) -> None:
    """A client writes a byte now and then; the server is killed or loses power; nothing acknowledged is lost."""
    server, client = world.machine("server"), world.machine("client").host
    acknowledged = 0
    for _ in range(4):
        server.start(journal_server)
        transport, protocol = await client.connect(Answers, "server", 7)
        assert isinstance(protocol, Answers)
        before = server.disk.size("journal") if server.disk.exists("journal") else 0
        for number in range(20):
            transport.write(bytes([number]))
            await asyncio.sleep(world.rng.random() / 200)
        acknowledged = before + len(protocol.received)
        if world.rng.randrange(2):
            server.lose_power()
        else:
            server.kill()
        assert server.disk.size("journal") >= acknowledged
        await asyncio.sleep(world.rng.random())


def digest_of(seed: int) -> str:
    with World(seed) as world:
        world.run(toy(world))
        return world.trace.digest


@pytest.mark.parametrize("seed", range(10))
def test_what_was_acknowledged_survives(seed: int) -> None:
    digest_of(seed)


def test_one_seed_one_history_under_any_hash_seed() -> None:
    program = "from tests.unit.testing.test_world import digest_of; print(digest_of(7))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "12345")
    }
    assert digests == {digest_of(7)}
    assert digest_of(8) not in digests


def test_a_failure_names_its_seed_and_the_last_events() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(1)
        raise KeyError("the cause")

    with (
        World(41) as world,
        pytest.raises(WorldFailed, match=r"seed 41 failed at 1\.0+ s: KeyError.*\n  10+ timer") as raised,
    ):
        world.run(main(world))
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_program_that_fails_fails_the_world_unless_it_may() -> None:
    async def program(ports: Ports) -> None:
        await asyncio.sleep(1)
        raise ValueError("broken program")

    async def main(world: World, may_fail: bool) -> str:
        task = world.machine("a").start(program, may_fail=may_fail)
        await asyncio.sleep(5)
        return str(task.exception())

    with World(1) as world, pytest.raises(WorldFailed, match="the program of a#1 failed"):
        world.run(main(world, may_fail=False))
    with World(1) as world:
        assert world.run(main(world, may_fail=True)) == "broken program"


def test_an_exception_that_is_only_logged_fails_the_world() -> None:
    async def program(ports: Ports) -> None:
        try:
            raise ValueError("swallowed")
        except ValueError:
            logging.getLogger("barnabas.broker").exception("something went wrong")

    async def main(world: World) -> None:
        await world.machine("a").start(program)
        await asyncio.sleep(1)

    with World(1) as world, pytest.raises(WorldFailed, match=r"something went wrong.*swallowed"):
        world.run(main(world))


def test_a_dead_process_cannot_touch_the_disk() -> None:
    attempts: list[str] = []

    async def program(ports: Ports) -> None:
        file = ports.disk.open("a", create=True)
        try:
            await asyncio.Event().wait()
        finally:
            for attempt in (
                lambda: file.pwrite(b"x", 0),
                lambda: ports.disk.replace("b", b"x"),
                lambda: ports.disk.open("c", create=True),
                lambda: ports.disk.sync_now([]),
                lambda: ports.disk.lock(".lock"),
            ):
                with pytest.raises(OSError, match="dead"):
                    attempt()
                attempts.append("refused")
            with pytest.raises(OSError, match="dead"):
                await ports.network.listen(asyncio.Protocol, "", 1)
            attempts.append("refused")

    async def main(world: World) -> None:
        machine = world.machine("a")
        machine.start(program)
        await asyncio.sleep(1)
        machine.kill()
        await asyncio.sleep(1)
        assert machine.disk.listdir("") == ["a"]
        assert machine.disk.size("a") == 0

    with World(1) as world:
        world.run(main(world))
    assert attempts == ["refused"] * 6


def test_what_a_dead_process_left_unheard_stays_unheard() -> None:
    async def program(ports: Ports) -> None:
        unheard = asyncio.get_running_loop().create_future()
        try:
            await asyncio.Event().wait()
        finally:
            try:
                ports.disk.open("a", create=True)
            except OSError as error:
                unheard.set_exception(error)
                keep.append(unheard)

    keep: list[object] = []

    async def main(world: World) -> None:
        machine = world.machine("a")
        machine.start(program)
        await asyncio.sleep(1)
        machine.kill()
        await asyncio.sleep(1)
        keep.clear()  # asyncio reports the exception that nobody fetched only now, in no process's name
        await asyncio.sleep(1)

    with World(1) as world:
        world.run(main(world))


def test_kill_keeps_the_page_cache_and_power_loss_does_not() -> None:
    async def program(ports: Ports) -> None:
        file = ports.disk.open("a", create=True)
        file.pwrite(b"synced", 0)
        await ports.disk.sync([file])
        file.pwrite(b"cached", 6)
        await asyncio.Event().wait()

    async def main(world: World, power: bool) -> bytes:
        machine = world.machine("a")
        machine.start(program)
        await asyncio.sleep(1)
        if power:
            machine.lose_power()
        else:
            machine.kill()
        return machine.disk.read("a")

    left: dict[bool, set[bytes]] = {False: set(), True: set()}
    for seed in range(12):
        for power in (False, True):
            with World(seed) as world:
                left[power].add(world.run(main(world, power)))
    assert left == {False: {b"syncedcached"}, True: {b"syncedcached", b"synced"}}


def test_one_process_a_machine_and_its_end_frees_it() -> None:
    async def short(ports: Ports) -> int:
        await ports.network.listen(asyncio.Protocol, "", 7)
        ports.disk.lock(".lock")
        await asyncio.sleep(1)
        return 5

    async def main(world: World) -> None:
        machine = world.machine("a")
        task = machine.start(short)
        with pytest.raises(RuntimeError, match="still runs"):
            machine.start(short)
        assert await task == 5
        await asyncio.sleep(0)
        assert await machine.start(short) == 5  # port and lock are free again

    with World(1) as world:
        world.run(main(world))


def test_clocks_and_random_numbers_are_the_seed_s() -> None:
    async def program(ports: Ports) -> tuple[int, int, bytes]:
        return ports.clock.now_ms(), ports.rng.randrange(1 << 60), ports.rng.uuid()

    async def main(world: World) -> list[object]:
        world.machine("b").clock.skew_ms = -5_000
        return [await world.machine(name).start(program) for name in ("a", "b")]

    results = []
    for seed in (1, 1, 2):
        with World(seed) as world:
            results.append(world.run(main(world)))
    assert results[0] == results[1] != results[2]
    (first, *_), (second, *_) = cast(list[tuple[int, int, bytes]], results[0])
    assert first - second == 5_000


def test_a_paused_process_sleeps_through_its_timers_and_gets_them_all_when_it_wakes() -> None:
    beats: list[float] = []

    async def program(ports: Ports) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            beats.append(asyncio.get_running_loop().time())

    async def main(world: World) -> None:
        machine = world.machine("box")
        done = machine.start(program)
        await asyncio.sleep(1.5)
        machine.pause()
        await asyncio.sleep(10)
        assert beats == [1.0]
        machine.resume()
        await done
        machine.start(program)
        machine.pause()
        machine.kill()
        machine.resume()  # nothing runs
        await asyncio.sleep(5)

    with World(1) as world:
        world.run(main(world))
    assert beats == [1.0, 11.5, 12.5]
