"""SnapshotInstaller: replaces a follower's log by a snapshot of the leader (KIP-630), without blocking the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from barnabas.broker.quorum.core.following import Installation
from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.snapshot_writer import SnapshotWriter
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import RemoteProtocolError


class SnapshotInstaller:
    """Installs the snapshots of one machine.

    Checks the snapshot in slices, writes it aside, syncs, names it, syncs; then the log begins at its end, and syncs: a crash between two
    steps leaves the old log or the snapshot. During the steps the node serves and votes but fetches nothing, so nothing is written behind a part
    of the old log. `advance` is called after each installation, `fail` with the error of the disk.
    """

    def __init__(
        self,
        reactor: Reactor,
        snapshots: SnapshotWriter,
        machine: RaftMachine,
        advance: Callable[[], None],
        fail: Callable[[OSError], None],
    ) -> None:
        self._reactor = reactor
        self._snapshots = snapshots
        self._machine = machine
        self._advance = advance
        self._fail = fail

    def start(self) -> None:
        """Begins the installation that the machine waits for, if there is one."""
        installation = self._machine.installation
        if installation is not None and not installation.begun:
            installation.begun = True
            self._reactor.scope.start(self._install(installation), name="quorum snapshot")

    async def _install(self, installation: Installation) -> None:
        machine, damage = self._machine, None
        replace_log = partial(machine.start_at_snapshot, installation)
        try:
            await self._snapshots.install(installation.snapshot, installation.data, replace_log)
        except RemoteProtocolError as error:
            damage = error
        except OSError as error:
            self._fail(error)
            return
        machine.on_installed(installation, damage, self._reactor.clock.monotonic_ms())
        self._advance()
