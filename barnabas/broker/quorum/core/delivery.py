"""ListenerContext: delivers snapshots, committed batches and leader changes to the quorum's listener."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.core.quorum_state import NO_NODE
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.ports import Buffer

BATCHES_BYTES: Final = 1024 * 1024  # of committed batches in one call of the listener


class RaftListener(Protocol):
    """Replays this node's metadata log."""

    def on_snapshot(self, snapshot: SnapshotId, values: Iterable[bytes]) -> None:
        """Replaces everything below the snapshot's end offset by these encoded records. Also called by `open`."""
        ...

    def on_committed(self, batches: Buffer) -> None:
        """Receives whole committed batches, including control batches, each once and in order. The view is valid during the call.

        To continue in later turns, call `Quorum.hold` before returning, and `Quorum.resume` at the end.
        """
        ...

    def on_leading(self, epoch: int) -> None:
        """This node leads, its LeaderChange is committed, and everything before was delivered."""
        ...

    def on_not_leading(self) -> None:
        """This node no longer leads; follows an `on_leading`."""
        ...

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """Leader or epoch changed; −1 if the leader is unknown."""
        ...


class ListenerContext:
    """Delivers committed batches once and in order, everything before the own epoch before `on_leading`."""

    __slots__ = ("_leader", "_leading_epoch", "_listener", "_log", "held", "next_offset", "stopped")

    def __init__(self, listener: RaftListener, raft_log: RaftLog) -> None:
        self._listener = listener
        self._log = raft_log
        self.next_offset = 0  # the listener has received everything below
        self.held = False  # the listener is still processing: it gets no batch and no `on_leading`
        self.stopped = False  # the quorum has ended: no more batches
        self._leading_epoch = NO_NODE  # epoch of the last `on_leading`
        self._leader = (NO_NODE, 0)  # leader and epoch of the last `on_leader`

    def advance(self, machine: RaftMachine) -> None:
        """Calls the listener with the machine's changes."""
        if self._leading_epoch != NO_NODE and not (machine.is_leader and machine.epoch == self._leading_epoch):
            self._leading_epoch = NO_NODE
            self._listener.on_not_leading()
        if (machine.leader_id, machine.epoch) != self._leader:
            self._leader = (machine.leader_id, machine.epoch)
            self._listener.on_leader(*self._leader)
        self.deliver_committed(machine)
        if not self.held and machine.epoch_committed and self._leading_epoch != machine.epoch:
            self._leading_epoch = machine.epoch
            self._listener.on_leading(machine.epoch)

    def deliver_snapshot(self) -> None:
        """Delivers the latest snapshot if it ends after the listener's position."""
        snapshot = self._log.latest_snapshot
        if snapshot is not None and snapshot.end_offset > self.next_offset:
            self.next_offset = snapshot.end_offset
            self._listener.on_snapshot(snapshot, self._log.snapshot_values())

    def deliver_committed(self, machine: RaftMachine) -> None:
        """Delivers a snapshot first if the log no longer has the next batch."""
        if not self.held and self.next_offset < self._log.start_offset:
            self.deliver_snapshot()
        while not self.stopped and not self.held and self.next_offset < machine.high_watermark:
            batches, next_offset = self._log.read_until(self.next_offset, BATCHES_BYTES, machine.high_watermark)
            self.next_offset = next_offset
            self._listener.on_committed(batches)
