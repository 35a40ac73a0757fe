"""World: machines, their disks and links, one virtual time, one seed.

A machine and its disk survive their processes. A machine runs one process at a time. A crash first cuts the process's ports,
then loses unsynced changes of the disk if it is a power loss, then cancels the process's tasks.

Invariants: the same seed and program give the same trace under any PYTHONHASHSEED, on any computer, at any speed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from barnabas.errors import BarnabasError
from barnabas.testing.simulation.clock import SimClock, SimRng
from barnabas.testing.simulation.disk import SimDisk
from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.network import LATENCY, SimHost, SimNetwork
from barnabas.testing.simulation.process import Process, current_process
from barnabas.testing.simulation.trace import Trace
from barnabas.testing.world.pipe import Flow

T = TypeVar("T")


class WorldFailed(BarnabasError):
    """A run failed. The message names the seed that repeats it. The exception's cause is the failure itself."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The four ports of `barnabas.ports` and `barnabas.network_port` for a program on a machine."""

    clock: SimClock
    rng: SimRng
    disk: SimDisk
    network: SimHost


Program = Callable[[Ports], Coroutine[Any, Any, T]]


class Machine:
    """A computer: a name in the network, a disk, a clock, and at most one running process.

    Attributes:
        disk: survives kills; `disk.fail(...)` makes its calls fail, `disk.slow(seconds)` its syncs slow;
            `disk.before_change` is called before each change, so a test may kill the process there.
        clock: `clock.skew_ms` is the offset of its wall clock.
        process: the running process, else None.
        incarnation: number of processes started so far.
        callback_s: how long each callback of its processes takes; set it before the start. A slow process cannot be paused.
    """

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.disk = SimDisk(name, world.loop, SimRng(world.seed, f"disk {name}"))
        self.callback_s = 0.0
        self.clock = SimClock(world.loop)
        self.host = world.network.host(name)
        self.process: Process | None = None
        self.incarnation = 0
        self._world = world
        self._rng = SimRng(world.seed, f"machine {name}")

    def start(self, program: Program[T], *, may_fail: bool = False) -> asyncio.Task[T]:
        """Starts a process that runs `program(ports)`, and returns its task. The process ends with the program.

        An exception of the program fails the world, unless `may_fail`: then the caller gets it by awaiting the task. The task of
        a killed process is cancelled.
        """
        if self.process is not None:
            raise RuntimeError(f"{self.process.label} still runs on {self.name}: kill it first")
        self.incarnation += 1
        process = Process(f"{self.name}#{self.incarnation}")
        process.callback_ns = round(self.callback_s * 1e9)
        rng = SimRng(self._world.seed, process.label)
        process.on_death(self.host.kill)
        self.process = process
        if not self.host.powered:
            self.host.restore_power()
        self._note(f"start {process.label}")
        ports = Ports(self.clock, rng, self.disk, self.host)
        return process.context.run(
            lambda: self._world.loop.create_task(self._run(process, program, ports, may_fail), name="program")
        )

    def kill(self) -> None:
        """Simulates SIGKILL: written data stays in the page cache; connections are reset. No effect if no process runs."""
        if self.process is not None:
            self._note(f"kill {self.process.label}")
            self._end(self.process)
            self.disk.kill()

    def pause(self) -> None:
        """Simulates SIGSTOP: the process does nothing until `resume`; its connections stay open. No effect if no process runs."""
        if self.process is not None and self.process.parked is None:
            self._note(f"pause {self.process.label}")
            self.process.parked = []

    def resume(self) -> None:
        """Simulates SIGCONT: the process handles all events of the pause now."""
        if self.process is not None and self.process.parked is not None:
            self._note(f"resume {self.process.label}")
            self._world.loop.wake(self.process)

    def lose_power(self) -> None:
        """Simulates a power loss: unsynced changes survive, are torn or lost, by the seed. The machine sends nothing until `start`."""
        self._note(f"lose power {self.name}")
        self.host.lose_power()
        if self.process is not None:
            process, self.process = self.process, None
            process.die()
        self.disk.crash(self._rng)

    async def join(self) -> None:
        """Waits until no process runs on the machine."""
        if self.process is not None:
            ended: asyncio.Future[None] = self._world.loop.create_future()
            self.process.on_death(lambda: None if ended.done() else ended.set_result(None))
            await ended

    async def _run(self, process: Process, program: Program[T], ports: Ports, may_fail: bool) -> T:
        try:
            return await program(ports)
        except Exception as error:
            if process.alive and not may_fail:
                message = f"the program of {process.label} failed"
                self._world.loop.call_exception_handler({"message": message, "exception": error})
            raise
        finally:
            if process.alive:
                self._note(f"end {process.label}")
                self._world.loop.call_soon(self._retire, process)

    def _retire(self, process: Process) -> None:
        """Ends a process after its program: its remaining tasks and connections end, as at the exit of any process."""
        if process.alive:
            self._end(process)
            self.disk.kill()

    def _end(self, process: Process) -> None:
        if self.process is process:
            self.process = None
        process.die()

    def _note(self, what: str) -> None:
        self._world.trace.note(self._world.loop.now_ns, what)


class _LoggedExceptions(logging.Handler):
    """Fails the world for an exception that a program only logs: logs of simulated runs are not read."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(logging.ERROR)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if record.exc_info and record.exc_info[1] is not None and (process is None or process.alive):
            message = f"{record.name} logged: {record.getMessage()}"
            self._loop.default_exception_handler({"message": message, "exception": record.exc_info[1]})


class World:
    """One simulated run.

    Args:
        seed: seed of all random draws.
        flow: of each direction of a link that was not shaped by `network`.
        keep_trace: number of last events whose text is kept; None keeps all.
    """

    def __init__(self, seed: int, *, flow: Flow = LATENCY, keep_trace: int | None = 40) -> None:
        self.seed = seed
        self.trace = Trace(keep=keep_trace)
        self.loop = SimLoop(self.trace)
        self.rng = SimRng(seed, "world")
        self.network = SimNetwork(self.loop, SimRng(seed, "network"), flow)
        self.machines: dict[str, Machine] = {}

    def machine(self, name: str) -> Machine:
        """The machine of this name, created on first use."""
        if name not in self.machines:
            self.machines[name] = Machine(self, name)
        return self.machines[name]

    def run(self, main: Coroutine[Any, Any, T], *, time_limit_s: float = 24 * 3600.0) -> T:
        """Runs the test's coroutine to its end and returns its result.

        Raises:
            WorldFailed: it raised an exception, another exception was not handled, or `time_limit_s` virtual seconds passed.
        """
        listener = _LoggedExceptions(self.loop)
        logger = logging.getLogger("barnabas")
        logger.addHandler(listener)
        try:
            result: T = self.loop.run(main, time_limit_s=time_limit_s)
        except Exception as failure:
            report = "\n  ".join(self.trace.last())
            raise WorldFailed(
                f"seed {self.seed} failed at {self.loop.time():.6f} s: {type(failure).__name__}: {failure}\n  {report}"
            ) from failure
        finally:
            logger.removeHandler(listener)
        return result

    def close(self) -> None:
        """Ends every process, so that the garbage collector finds none of their objects later."""
        for machine in self.machines.values():
            machine.kill()
        self.loop.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
