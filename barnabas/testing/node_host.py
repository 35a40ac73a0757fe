"""NodeHost: one run of a node with its disks inside the event loop, in a thread or process. A restart makes a new host on the same disks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from barnabas.broker.api.call import Answer, Call
from barnabas.broker.api.router import Route, Router, Serve
from barnabas.broker.node.config_providers import broker_config
from barnabas.broker.node.node import Node
from barnabas.errors import LocalProtocolError
from barnabas.network_port import Network
from barnabas.ports import Clock, Disk, Rng
from barnabas.protocol.messages.groups import SyncGroupRequest
from barnabas.protocol.registry import API_VERSIONS_KEY
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.offload import WorkerThread
from barnabas.runtime.randomness import SystemRng
from barnabas.testing.audit.watch import AuditWatch
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.extension import Commands
from barnabas.testing.faults.rule import Rule
from barnabas.testing.faults.table import FaultTable, is_internal
from barnabas.testing.history.recorder import Recorder
from barnabas.testing.versions import Release, limiting_to
from barnabas.testing.world.disks import FaultyDisk
from barnabas.testing.world.network import WorldNetwork

if TYPE_CHECKING:
    from barnabas.broker.handlers.needs import Needs

JsonValue = Any  # None, bool, int, float, str, list or dict with str keys, of the same


class Travel:
    """The moved time of one broker; `machine` is the machine's clock.

    Attributes:
        clock: broker-to-broker timeouts (sessions, elections, replication) keep the machine's monotonic clock: no jump ends them.
        client_clock: client timeouts (group sessions, transactions) move with the wall clock.
    """

    def __init__(self, machine: Clock) -> None:
        self.offset_ms = 0  # ahead of the machine; never decreases
        self.clock: Clock = _Moved(machine, self)
        self.client_clock: Clock = _Moved(machine, self)
        self.clock.monotonic_ms = machine.monotonic_ms  # type: ignore[method-assign]  # no call more for each use

    def move_to(self, offset_ms: int) -> None:
        self.offset_ms = max(self.offset_ms, offset_ms)


class _Moved:
    def __init__(self, machine: Clock, travel: Travel) -> None:
        self._machine = machine
        self._travel = travel

    def now_ms(self) -> int:
        return self._machine.now_ms() + self._travel.offset_ms

    def monotonic_ms(self) -> int:
        return self._machine.monotonic_ms() + self._travel.offset_ms


class NodeHost:
    """See the module.

    Attributes:
        clock, rng, disks, network: the node's ports; an extension may replace them before `start`.
        travel: the offset of the clocks, which `kafka.clock` moves.
        node: the node, from `start` on.
        release: the release of Kafka as which the node serves clients; None for all that it can.
        links, files: network and log directories of the node, as far as a test can shape and break them.
        recorder: what it notes about requests.
        state: for extensions: one value each, under the extension's name.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        disks: Sequence[Disk],
        commands: Mapping[str, Callable[..., Any]],
        *,
        emit: Callable[[str, JsonValue], None],
        on_fatal: Callable[[BaseException], None],
        on_kill: Callable[[str], None],
    ) -> None:
        """Takes a disk for each of `log.dirs`, and the commands that it can run, by name. Raises BrokerError: a setting is wrong.

        `on_kill`: ends the node at once, within a call of its disk; gets what it loses. If it returns, it has called `kill`.
        """
        self._commands = commands
        self.config = broker_config(settings)
        self.node_id = self.config.node_id
        self.travel = Travel(SystemClock())
        self.clock: Clock = self.travel.clock
        self.rng: Rng = SystemRng()
        self.emit = emit
        self.files = [FaultyDisk(each, self._on_disk_fault, on_kill) for each in disks]
        self.disks: list[Disk] = [*self.files]
        listeners = [each for each in self.config.listeners if each.name != INTERNAL_LISTENER]
        self.links = WorldNetwork(AsyncioNetwork(), self.rng, frozenset(each.port for each in listeners))
        self.network: Network = self.links
        self.release: Release | None = None
        self.state: dict[str, Any] = {}
        self.recorder = Recorder(self.node_id, self.emit)
        self.node: Node | None = None
        self._interception: Interception | None = None
        self._on_fatal = on_fatal

    async def start(self, commands: Commands = ()) -> None:
        """Starts the node; returns when it serves. Raises what `Node.start` raises. `commands`: run before the node exists."""
        for name, arguments in commands:
            await self.command(name, arguments)
        self.node = Node(
            self.config,
            clock=self.clock,
            client_clock=self.travel.client_clock,
            rng=self.rng,
            disk=self.disks[0],
            other_disks=self.disks[1:],
            network=self.network,
            offload=WorkerThread(threads=2).run,
            on_fatal=self._on_fatal,
        )
        self._interception = Interception(self.node, self.node.router, self.recorder, self.release, self.emit)
        if self.release is not None:
            self.node.server.api_versions_range = self.release.served[API_VERSIONS_KEY]
        await self.node.start()

    def _on_disk_fault(self, fault: int, call: str, path: str, offset: int, size: int) -> None:
        self.emit("disk", {"id": fault, "call": call, "path": path, "offset": offset, "size": size})

    def lose_page_cache(self) -> None:
        """Loses what the disks have not synced; the node must have ended."""
        for each in self.files:
            each.lose_page_cache()

    async def stop(self) -> None:
        if self.node is not None:
            await self.node.stop()
        self.links.end()

    def kill(self) -> None:
        """Ends the node as a crash does."""
        for each in self.files:
            each.end()
        if self.node is not None:
            self.node.kill()
        self.links.end()

    @property
    def running(self) -> Node:
        if self.node is None:
            raise LocalProtocolError(f"node {self.node_id} was not started")
        return self.node

    @property
    def interception(self) -> Interception:
        """The interceptors of its requests. Raises LocalProtocolError before `start`."""
        if self._interception is None:
            raise LocalProtocolError(f"node {self.node_id} was not started")
        return self._interception

    async def command(self, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        """Runs a command of the table and returns its value.

        Raises:
            LocalProtocolError: no such command.
            Exception: what the command raises.
        """
        command = self._commands.get(name)
        if command is None:
            raise LocalProtocolError(f"node command {name!r} is not in barnabas/testing/node_commands.py")
        value = command(self, **arguments)
        return await value if isawaitable(value) else value


class Interception:
    """The interceptors of a broker."""

    def __init__(
        self,
        node: Needs,
        router: Router,
        recorder: Recorder,
        release: Release | None,
        emit: Callable[[str, Any], None],
    ) -> None:
        self.faults = FaultTable(node, router, self._on_hit, self.apply)
        self.watch = AuditWatch(self.faults.topic_name, emit, self.apply)
        # group → function that changes its SyncGroup requests
        self.sync_changes: dict[str, Callable[[SyncGroupRequest], None]] = {}
        self._router, self._recorder, self._release, self._emit = router, recorder, release, emit
        recorder.now_ms, recorder.topic_name = node.reactor.clock.now_ms, self.faults.topic_name
        self.apply()

    def apply(self) -> None:
        """Sets the interceptors that have something to do; called after each change of that."""
        level = self._recorder.level
        self._router.set_interceptors(
            [
                *([self._recorder.noting()] if level != "off" else ()),
                *([self.watch.stop] if self.watch.active else ()),
                *([self._change_sync] if self.sync_changes else ()),
                *([self.faults.meet] if self.faults.active else ()),
                *([self._recorder.record] if level == "all" else ()),
                *([limiting_to(self._release)] if self._release is not None else ()),
            ]
        )

    def _change_sync(self, serve: Serve, route: Route, call: Call[Any]) -> Answer:
        if isinstance(call.request, SyncGroupRequest) and not is_internal(call):
            change = self.sync_changes.get(call.request.group_id)
            if change is not None:
                change(call.request)
        return serve(route, call)

    def _on_hit(self, number: int, rule: Rule, met: dict[str, Any], call: Call[Any]) -> None:
        self._recorder.note_hit(number, rule, met, call)
        self._emit("fault", {"number": number, **met})
