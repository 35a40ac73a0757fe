"""SimDisk is a Disk: held to the contract of the real one, and slow in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.testing.simulation.clock import SimRng
from barnabas.testing.simulation.disk import SimDisk
from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.world import Ports, World
from tests.support.storage.disk_contract import DiskContract


class TestSimDisk(DiskContract):
    @pytest.fixture
    def disk(self) -> SimDisk:
        return SimDisk("machine", SimLoop(), SimRng(1))


def test_syncs_take_virtual_time_one_after_another() -> None:
    async def program(ports: Ports) -> list[float]:
        loop = asyncio.get_running_loop()
        files = [ports.disk.open(name, create=True) for name in "abc"]
        ends: list[float] = []

        async def sync(number: int) -> None:
            await ports.disk.sync(files[number : number + 1])
            ends.append(loop.time())

        await asyncio.gather(*map(sync, range(3)))
        return ends

    async def main(world: World) -> list[float]:
        return await world.machine("a").start(program)

    with World(4) as world:  # a seed that draws no slow sync
        ends = world.run(main(world))
    assert 0 < ends[0] < ends[1] < ends[2] < 0.016


def test_a_fault_of_the_machine_s_disk_reaches_its_process() -> None:
    async def program(ports: Ports) -> str:
        file = ports.disk.open("a", create=True)
        try:
            file.pwrite(b"x", 0)
        except OSError as error:
            return str(error)
        return "no fault"

    async def main(world: World) -> str:
        machine = world.machine("a")
        machine.disk.fail("pwrite")
        return await machine.start(program)

    with World(1) as world:
        assert "Input/output error" in world.run(main(world))
