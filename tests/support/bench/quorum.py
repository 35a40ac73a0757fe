"""Members of a quorum in memory: logs on memory disks, a network with delays and losses, one virtual clock.

Everything is drawn from one seed. After every event the invariants of Raft are checked over all members.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quorum.core.following import Installation
from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.core.messages import (
    BeginEpoch,
    EndEpoch,
    Failure,
    Fetch,
    OutboundRequest,
    RaftResponse,
    SnapshotFetch,
    Vote,
)
from barnabas.broker.quorum.core.quorum_state import NO_NODE, QuorumState, read_quorum_state, write_quorum_state
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.roles import Timing
from barnabas.broker.quorum.core.snapshots import SnapshotId, check_snapshot, encode_snapshot
from barnabas.broker.quorum.core.voters import VoterSet
from barnabas.loggers import RateLimitedLogger, logger
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.storage.disk import MemoryDisk, MemoryFile
from tests.support.clock import WALL_MS, ManualClock
from tests.support.rng import SeededRng

MAX_BYTES = 150  # in an answer: a batch or two, so that replicas stop between any two


class Member:
    """One node: its disk outlives its processes."""

    def __init__(self, members: Members, node_id: int) -> None:
        self.members = members
        self.node_id = node_id
        self.disk = MemoryDisk()
        self.alive = False
        self.life = 0
        self.syncing = False
        self.checked = 0  # committed records compared so far
        self.epoch = 0
        self.waiting: list[tuple[Fetch, int, Callable[[RaftResponse], None]]] = []
        self.machine: RaftMachine
        self.log: RaftLog

    def start(self) -> None:
        members = self.members
        self.alive, self.syncing, self.waiting, self.checked = True, False, [], 0
        self.life += 1
        self.log = RaftLog(self.disk, BrokerConfig({"node.id": str(self.node_id)}), members.clock, clean=False)
        self.machine = RaftMachine(
            self.node_id,
            members.voters,
            self.log,
            read_quorum_state(self.disk, CLUSTER_METADATA_FOLDER),
            store=self._store,
            random=members.rng.random,
            timing=members.timing,
            limited_log=RateLimitedLogger(logger("kafka.raft"), lambda: 0),
        )
        self.checked = self.machine.high_watermark
        self.machine.start(members.clock.time_ms)
        self.after()

    def _store(self, state: QuorumState) -> None:
        self.members.note_vote(self.node_id, state)
        write_quorum_state(self.disk, CLUSTER_METADATA_FOLDER, state)

    def stop(self, *, power: bool) -> None:
        self.alive = False
        self.life += 1
        if power:
            self.disk.crash(SeededRng(self.members.rng))
        else:
            self.disk.kill()
        self.members.connections_end(self.node_id)

    def after(self) -> None:
        """What the shell does after every input."""
        if not self.alive:
            return
        members, machine = self.members, self.machine
        for outgoing in machine.take_outgoing():
            members.send(self, outgoing)
        waiting, self.waiting = self.waiting, []
        for request, deadline_ms, done in waiting:
            reply = machine.fetch_reply(request, MAX_BYTES, waited=members.clock.time_ms >= deadline_ms)
            if reply is None:
                self.waiting.append((request, deadline_ms, done))
            else:
                done(reply)
        if machine.wants_sync and not self.syncing:
            self.syncing = True
            files, generation, end_offset = self.log.unsynced_files(), self.log.generation, self.log.end_offset
            life = self.life

            def synced() -> None:
                if self.life != life:
                    return
                # As in FileDisk, a file needs no sync that was closed since: it was removed, or synced at once.
                self.disk.sync_now([each for each in files if isinstance(each, MemoryFile) and not each.closed])
                self.syncing = False
                if generation == self.log.generation:
                    self.log.mark_synced(end_offset)
                    machine.on_synced(members.clock.time_ms)
                self.after()

            members.at(members.rng.randrange(8), synced)
        if machine.installation is not None and not machine.installation.begun:
            self._install(machine.installation)
        wake_at_ms = machine.wake_at_ms()
        times = [] if wake_at_ms is None else [wake_at_ms]
        times += [deadline_ms for _, deadline_ms, _ in self.waiting]
        if times:
            life = self.life
            members.at(max(min(times) - members.clock.time_ms, 0), lambda: self._timer(life))

    def _install(self, installation: Installation) -> None:
        """Installs a snapshot in three steps: between them everything else goes on, and the member may end."""
        installation.begun = True
        machine, life, voter_set = self.machine, self.life, VoterSet()

        def wanted() -> bool:
            return self.life == life and machine.installation is installation

        def stored() -> None:
            if wanted():
                check_snapshot(installation.data, voter_set.take)
                self.log.store_snapshot(installation.snapshot, installation.data)
                self.members.at(self.members.rng.randrange(8), replaced)

        def replaced() -> None:
            if wanted():
                machine.start_at_snapshot(installation, voter_set)
                self.members.at(self.members.rng.randrange(8), synced)
                self.after()

        def synced() -> None:
            if wanted():
                self.log.sync_now()
                machine.on_installed(installation, None, self.members.clock.time_ms)
                self.after()

        self.members.at(self.members.rng.randrange(8), stored)

    def _timer(self, life: int) -> None:
        if self.alive and self.life == life:
            self.machine.on_timer(self.members.clock.time_ms)
            self.after()

    def receive(self, outgoing: OutboundRequest, done: Callable[[RaftResponse], None]) -> None:
        request, now_ms = outgoing.request, self.members.clock.time_ms
        machine = self.machine
        reply: RaftResponse | None
        if isinstance(request, Vote):
            reply = machine.on_vote(request, now_ms)
        elif isinstance(request, BeginEpoch):
            reply = machine.on_begin_epoch(request, now_ms)
        elif isinstance(request, EndEpoch):
            reply = machine.on_end_epoch(request, now_ms)
        elif isinstance(request, SnapshotFetch):
            part = SnapshotFetch(request.epoch, request.replica_id, request.snapshot, request.position, 300)
            reply = machine.on_snapshot_fetch(part, now_ms)
        else:
            reply = machine.on_fetch(request, MAX_BYTES, now_ms)
            if reply is None:
                self.waiting.append((request, now_ms + request.max_wait_ms, done))
        if reply is not None:
            done(reply)
        self.after()

    def records(self, start: int, end: int) -> list[tuple[int, int, bytes]]:
        """(offset, epoch, value) of every record in [start, end)."""
        found = []
        offset = start
        while offset < end:
            batches, offset = self.log.read_until(offset, 10_000, end)
            for position, header in iter_batches(batches):
                for record in decode_records(batches, position, header):
                    if record.offset >= start:
                        found.append((record.offset, header.leader_epoch, record.value or b""))
        return found


class Members:
    """A quorum, its network and its time.

    Attributes:
        cut: directed links (from, to) that drop every message silently.
        lossy: shares of messages that are lost and that are delivered twice.
        committed: offset -> (epoch, value) of everything that any member took for committed.
    """

    def __init__(self, seed: int, count: int, *, observers: int = 0, timing: Timing | None = None) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.timing = timing or Timing()
        self.voters = tuple(range(1, count + 1))
        self.cut: set[tuple[int, int]] = set()
        self.lossy = 0.0
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.sequence = 0
        self.open: dict[tuple[int, int], list[Callable[[Failure], None]]] = {}  # requests under way, by connection
        self.all = {node_id: Member(self, node_id) for node_id in range(1, count + observers + 1)}

    def at(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (self.clock.time_ms + delay_ms, self.sequence, callback))

    def start(self) -> None:
        for member in self.all.values():
            member.start()

    def run(self, duration_ms: int) -> None:
        end_ms = self.clock.time_ms + duration_ms
        while self.events and self.events[0][0] <= end_ms:
            self.clock.time_ms, _, callback = heapq.heappop(self.events)
            callback()
            self.check()
        self.clock.time_ms = end_ms

    def run_until(self, condition: Callable[[], bool], limit_ms: int) -> int:
        """Runs until the condition holds; returns after how many milliseconds. Fails after the limit."""
        start_ms = self.clock.time_ms
        while not condition():
            assert self.events, "nothing is due any more"
            assert self.events[0][0] <= start_ms + limit_ms, f"not within {limit_ms} ms"
            self.clock.time_ms, _, callback = heapq.heappop(self.events)
            callback()
            self.check()
        return self.clock.time_ms - start_ms

    # --- the network

    def send(self, sender: Member, outgoing: OutboundRequest) -> None:
        target = self.all[outgoing.to]
        life, machine = sender.life, sender.machine
        over: list[bool] = []

        def fail(failure: Failure) -> None:
            if over or not sender.alive or sender.life != life:
                return
            over.append(True)
            machine.on_failure(outgoing.to, outgoing.request, failure, self.clock.time_ms)
            sender.after()

        def answered(reply: RaftResponse) -> None:
            def deliver() -> None:
                if over or not sender.alive or sender.life != life:
                    return
                over.append(True)
                machine.on_reply(outgoing.to, outgoing.request, reply, self.clock.time_ms)
                sender.after()

            if (target.node_id, sender.node_id) not in self.cut and self.rng.random() >= self.lossy:
                self.at(self.latency(), deliver)

        if not target.alive:
            self.at(self.latency(), lambda: fail(Failure.REFUSED))
            return
        self.open.setdefault((sender.node_id, target.node_id), []).append(fail)
        self.at(outgoing.timeout_ms, lambda: fail(Failure.SILENT))
        target_life = target.life

        def arrive() -> None:
            if target.alive and target.life == target_life and (sender.node_id, target.node_id) not in self.cut:
                target.receive(outgoing, answered)

        for _ in range(2 if self.rng.random() < self.lossy else 1):
            if self.rng.random() >= self.lossy:
                self.at(self.latency(), arrive)

    def latency(self) -> int:
        return self.rng.randrange(1, 4) if self.rng.random() < 0.95 else self.rng.randrange(1, 300)

    def connections_end(self, node_id: int) -> None:
        for (sender, target), failures in list(self.open.items()):
            if target == node_id:
                for fail in failures:
                    self.at(self.latency(), lambda fail=fail: fail(Failure.LOST))  # type: ignore[misc]  # bound here
                del self.open[sender, target]

    # --- the invariants

    def note_vote(self, node_id: int, state: QuorumState) -> None:
        if state.voted_id != NO_NODE:
            assert self.votes.setdefault((node_id, state.leader_epoch), state.voted_id) == state.voted_id

    def check(self) -> None:
        for member in self.all.values():
            if not member.alive:
                continue
            machine = member.machine
            assert machine.epoch >= member.epoch, f"epoch of {member.node_id} went back"
            member.epoch = machine.epoch
            if machine.is_leader:
                assert self.leaders.setdefault(machine.epoch, member.node_id) == member.node_id, "two leaders"
            if machine.high_watermark > member.checked:
                self._check_committed(member, machine.high_watermark)

    def _check_committed(self, member: Member, high_watermark: int) -> None:
        start = max(member.checked, member.log.start_offset)
        for offset, epoch, value in member.records(start, high_watermark):
            assert self.committed.setdefault(offset, (epoch, value)) == (epoch, value), f"offset {offset} differs"
        member.checked = high_watermark

    # --- what a test does

    def leader(self) -> Member | None:
        """The leader of the highest epoch, once its LeaderChange record is committed."""
        leading = [m for m in self.all.values() if m.alive and m.machine.epoch_committed]
        return max(leading, key=lambda m: m.machine.epoch, default=None)

    def append(self, value: bytes) -> None:
        leading = [m for m in self.all.values() if m.alive and m.machine.is_leader]
        if leading:
            member = self.rng.choice(leading)
            member.machine.append([value])
            member.after()

    def snapshot(self, member: Member) -> None:
        """A member that has committed something snapshots it and drops the log below."""
        end_offset = member.machine.high_watermark
        if end_offset <= member.log.start_offset or member.machine.installation is not None:
            return  # the shell stores one snapshot at a time
        epoch = self.committed[end_offset - 1][0]
        values = [self.committed[offset][1] for offset in range(end_offset)]
        data = encode_snapshot(values, epoch=epoch, last_timestamp_ms=0, now_ms=WALL_MS)
        member.log.store_snapshot(SnapshotId(end_offset, epoch), data)
        member.log.apply_retention(0, end_offset)
        member.after()

    def settled(self) -> bool:
        """Whether all members follow one leader and have all of its log."""
        leader = self.leader()
        return leader is not None and all(
            m.machine.leader_id == leader.node_id
            and m.machine.epoch == leader.machine.epoch
            and m.log.end_offset == leader.log.end_offset == m.machine.high_watermark
            for m in self.all.values()
        )
