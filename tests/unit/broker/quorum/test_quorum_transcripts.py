"""Scenario transcripts of the quorum: what its members are told, say and become, as text to be reviewed.

A transcript in tests/transcripts/quorum is a list of blocks: a command, a line of dashes, and what came of it. Run with
REWRITE_TRANSCRIPTS=1 to write the present outcome into the files, and read the difference. Chance is no chance here: what member
N draws is always N tenths.

Commands:
    quorum N [observers]            N voters, numbered from 1, and so many observers
    start ID… / kill ID / power ID  processes begin, are killed, or lose what was not synced
    pass N                          time passes, in ms; deadlines are met; messages stay where they are
    deliver FROM TO / drop FROM TO  the oldest message between them arrives, or is lost (its sender is not told)
    lose FROM TO                    the connection between them ends: requests of FROM that wait for TO fail
    sync ID                         what ID has written is durable
    settle                          messages are delivered, logs synced and deadlines met, until nothing is under way now
    append ID VALUE…                the leader writes a batch
    snapshot ID                     a member snapshots what is committed and drops the log below
    resign ID                       the leader gives up
    show                            where everybody stands
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.core.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    Failure,
    Fetch,
    FetchReply,
    OutboundRequest,
    RaftRequest,
    RaftResponse,
    SnapshotFetch,
    SnapshotReply,
    Vote,
    VoteReply,
)
from barnabas.broker.quorum.core.quorum_state import NO_NODE, read_quorum_state, write_quorum_state
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.roles import Role, Timing
from barnabas.broker.quorum.core.snapshots import SnapshotId, check_snapshot, encode_snapshot
from barnabas.broker.quorum.core.voters import VoterSet
from barnabas.errors import ErrorCode
from barnabas.loggers import RateLimitedLogger, logger
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.storage.disk import MemoryDisk
from tests.support.clock import ManualClock

FOLDER = Path(__file__).parents[3] / "transcripts" / "quorum"
RULE = "----"
MAX_BYTES = 2_000  # of records in an answer


class Actor:
    """One member on the stage."""

    def __init__(self, stage: Stage, node_id: int) -> None:
        self.stage = stage
        self.node_id = node_id
        self.disk = MemoryDisk()
        self.machine: RaftMachine | None = None
        self.waiting: list[tuple[Fetch, int, Callable[[RaftResponse], None]]] = []
        self.told = ""

    def start(self) -> None:
        self.log = RaftLog(self.disk, BrokerConfig({"node.id": str(self.node_id)}), self.stage.clock, clean=False)
        self.machine = RaftMachine(
            self.node_id,
            self.stage.voters,
            self.log,
            read_quorum_state(self.disk, CLUSTER_METADATA_FOLDER),
            store=lambda state: write_quorum_state(self.disk, CLUSTER_METADATA_FOLDER, state),
            random=lambda: self.node_id / 10,
            timing=Timing(),
            limited_log=RateLimitedLogger(logger("kafka.raft"), lambda: 0),
        )
        self.machine.start(self.stage.clock.time_ms)
        self.after()

    def end(self) -> None:
        self.machine = None
        self.waiting.clear()
        self.told = ""

    def after(self) -> None:
        machine = self.machine
        if machine is None:
            return
        waiting, self.waiting = self.waiting, []
        for request, deadline_ms, done in waiting:
            reply = machine.fetch_reply(request, MAX_BYTES, waited=self.stage.clock.time_ms >= deadline_ms)
            if reply is None:
                self.waiting.append((request, deadline_ms, done))
            else:
                done(reply)
        if (installation := machine.installation) is not None:
            voter_set = VoterSet()
            check_snapshot(installation.data, voter_set.take)
            self.log.store_snapshot(installation.snapshot, installation.data)
            machine.start_at_snapshot(installation, voter_set)
            self.log.sync_now()
            machine.on_installed(installation, None, self.stage.clock.time_ms)
        self.stage.tell(self)
        for outgoing in machine.take_outgoing():
            self.stage.post(self, outgoing)

    def receive(self, request: RaftRequest, done: Callable[[RaftResponse], None]) -> None:
        machine, now_ms = self.machine, self.stage.clock.time_ms
        if machine is None:
            return
        if isinstance(request, Vote):
            done(machine.on_vote(request, now_ms))
        elif isinstance(request, BeginEpoch):
            done(machine.on_begin_epoch(request, now_ms))
        elif isinstance(request, EndEpoch):
            done(machine.on_end_epoch(request, now_ms))
        elif isinstance(request, SnapshotFetch):
            done(machine.on_snapshot_fetch(request, now_ms))
        else:
            reply = machine.on_fetch(request, MAX_BYTES, now_ms)
            if reply is None:
                self.waiting.append((request, now_ms + request.max_wait_ms, done))
            else:
                done(reply)
        self.after()


class Stage:
    """Members, and the messages between them, which arrive when the transcript says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.out: list[str] = []
        self.voters: tuple[int, ...] = ()
        self.actors: dict[int, Actor] = {}
        self.mail: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self.asked: dict[tuple[int, int], list[Callable[[Failure], None]]] = {}

    def run(self, line: str) -> list[str]:
        self.out = []
        command, *words = line.split()
        getattr(self, "on_" + command)(words)
        return self.out

    # --- the mail

    def post(self, sender: Actor, outgoing: OutboundRequest) -> None:
        machine, request, to = sender.machine, outgoing.request, outgoing.to
        assert machine is not None
        target = self.actors[to]
        life = target.machine
        self.out.append(f"{sender.node_id} -> {to}  {show_request(request)}")
        over: list[bool] = []

        def fail(failure: Failure) -> None:
            if not over and sender.machine is machine:
                over.append(True)
                machine.on_failure(to, request, failure, self.clock.time_ms)
                sender.after()

        def answer(reply: RaftResponse) -> None:
            self.out.append(f"{to} -> {sender.node_id}  {show_reply(reply)}")
            self.mail.setdefault((to, sender.node_id), []).append(lambda: take(reply))

        def take(reply: RaftResponse) -> None:
            if not over and sender.machine is machine:
                over.append(True)
                machine.on_reply(to, request, reply, self.clock.time_ms)
                sender.after()

        if life is None:
            self.out.append(f"{to} -> {sender.node_id}  refused")
            self.mail.setdefault((to, sender.node_id), []).append(lambda: fail(Failure.REFUSED))
            return
        self.asked.setdefault((sender.node_id, to), []).append(fail)

        def arrive() -> None:
            if target.machine is life:
                target.receive(request, answer)

        self.mail.setdefault((sender.node_id, to), []).append(arrive)

    def tell(self, actor: Actor) -> None:
        """Says what became of a member, where that is new."""
        now = epoch_state(actor)
        if now != actor.told:
            actor.told = now
            self.out.append(now)

    # --- commands

    def on_quorum(self, words: list[str]) -> None:
        count, observers = int(words[0]), int(words[1]) if len(words) > 1 else 0
        self.voters = tuple(range(1, count + 1))
        self.actors = {each: Actor(self, each) for each in range(1, count + observers + 1)}

    def on_start(self, words: list[str]) -> None:
        for each in words:
            self.actors[int(each)].start()

    def on_kill(self, words: list[str]) -> None:
        self._end(self.actors[int(words[0])])

    def on_power(self, words: list[str]) -> None:
        actor = self.actors[int(words[0])]
        self._end(actor)
        actor.disk.crash()

    def _end(self, actor: Actor) -> None:
        actor.end()
        actor.disk.kill()
        for sender, target in list(self.asked):
            if target == actor.node_id:
                self.on_lose([str(sender), str(target)])

    def on_pass(self, words: list[str]) -> None:
        end_ms = self.clock.time_ms + int(words[0])
        while due := self._due(end_ms):
            at_ms, actor = min(due, key=lambda each: (each[0], each[1].node_id))
            self.clock.time_ms = max(self.clock.time_ms, at_ms)
            self._wake(actor)
        self.clock.time_ms = end_ms

    def _due(self, now_ms: int) -> list[tuple[int, Actor]]:
        return [
            (at_ms, actor)
            for actor in self.actors.values()
            if actor.machine is not None
            for at_ms in (actor.machine.wake_at_ms(), *(deadline_ms for _, deadline_ms, _ in actor.waiting))
            if at_ms is not None and at_ms <= now_ms
        ]

    def _wake(self, actor: Actor) -> None:
        if actor.machine is not None:
            actor.machine.on_timer(self.clock.time_ms)
        actor.after()

    def on_deliver(self, words: list[str]) -> None:
        self.mail[int(words[0]), int(words[1])].pop(0)()

    def on_drop(self, words: list[str]) -> None:
        self.mail[int(words[0]), int(words[1])].pop(0)

    def on_lose(self, words: list[str]) -> None:
        pair = int(words[0]), int(words[1])
        self.mail.pop(pair, None)
        for fail in self.asked.pop(pair, []):
            fail(Failure.LOST)

    def on_sync(self, words: list[str]) -> None:
        self._sync(self.actors[int(words[0])])

    def _sync(self, actor: Actor) -> None:
        if actor.machine is not None:
            actor.log.sync_now()
            actor.machine.on_synced(self.clock.time_ms)
            actor.after()

    def on_settle(self, _words: list[str]) -> None:
        for _ in range(1000):
            pairs = [pair for pair, mail in self.mail.items() if mail]
            unsynced = [each for each in self.actors.values() if each.machine is not None and each.machine.wants_sync]
            for pair in sorted(pairs):
                if self.mail.get(pair):
                    self.mail[pair].pop(0)()
            for actor in unsynced:
                self._sync(actor)
            due = self._due(self.clock.time_ms)
            for _, actor in due:
                self._wake(actor)
            if not pairs and not unsynced and not due:
                return
        raise AssertionError("it never settles")

    def on_append(self, words: list[str]) -> None:
        actor = self.actors[int(words[0])]
        assert actor.machine is not None
        actor.machine.append([word.encode() for word in words[1:]])
        actor.after()

    def on_snapshot(self, words: list[str]) -> None:
        actor = self.actors[int(words[0])]
        assert actor.machine is not None
        end_offset = actor.machine.high_watermark
        epoch, values = contents(actor, end_offset)
        data = encode_snapshot(values, epoch=epoch, last_timestamp_ms=0, now_ms=0)
        actor.log.store_snapshot(SnapshotId(end_offset, epoch), data)
        actor.log.apply_retention(0, end_offset)
        actor.after()

    def on_resign(self, words: list[str]) -> None:
        actor = self.actors[int(words[0])]
        assert actor.machine is not None
        actor.machine.resign(self.clock.time_ms)
        actor.after()

    def on_show(self, _words: list[str]) -> None:
        for actor in self.actors.values():
            if actor.machine is None:
                self.out.append(f"{actor.node_id} is down")
                continue
            _, values = contents(actor, actor.log.end_offset)
            self.out.append(f"{epoch_state(actor)}: {' '.join(value.decode() for value in values)}".rstrip(": "))


def contents(actor: Actor, end_offset: int) -> tuple[int, list[bytes]]:
    """Epoch of the last record below, and the values of all: of the snapshot, then of the log."""
    values, epoch = list(actor.log.snapshot_values()), 0
    offset = actor.log.latest_snapshot.end_offset if actor.log.latest_snapshot else 0
    while offset < end_offset:
        batches, offset = actor.log.read_until(offset, 1 << 20, end_offset)
        for position, header in iter_batches(batches):
            epoch = header.leader_epoch
            if not header.is_control:
                values += [record.value or b"" for record in decode_records(batches, position, header)]
    return epoch, values


def epoch_state(actor: Actor) -> str:
    machine = actor.machine
    assert machine is not None
    log = actor.log
    text = f"{actor.node_id} {machine.role.name} epoch {machine.epoch}"
    if machine.leader_id not in (NO_NODE, actor.node_id):
        text += f" of {machine.leader_id}"
    if machine.epoch_state.voted_id != NO_NODE and machine.role is Role.UNATTACHED:
        text += f" voted {machine.epoch_state.voted_id}"
    log_range = f"{log.start_offset}-{log.end_offset}" if log.start_offset else f"{log.end_offset}"
    return f"{text}, log {log_range} committed {machine.high_watermark}"


def show_request(request: RaftRequest) -> str:
    if isinstance(request, Vote):
        kind = "pre-vote" if request.pre_vote else "vote"
        return f"{kind}? epoch {request.epoch}, log {request.log.end_offset} of epoch {request.log.epoch}"
    if isinstance(request, BeginEpoch):
        return f"epoch {request.epoch} begins"
    if isinstance(request, EndEpoch):
        return f"epoch {request.epoch} ends, then {' '.join(map(str, request.successors))}"
    if isinstance(request, SnapshotFetch):
        return f"snapshot {request.snapshot.end_offset} from byte {request.position}"
    return (
        f"fetch epoch {request.epoch} from {request.log.end_offset} after epoch {request.log.epoch}, "
        f"committed {request.high_watermark}"
    )


def show_reply(reply: RaftResponse) -> str:
    leader = "" if reply.leader_id == NO_NODE else f" of {reply.leader_id}"
    what: Any = ""
    if isinstance(reply, VoteReply):
        what = "granted" if reply.granted else "not granted"
    elif isinstance(reply, EpochReply):
        what = "noted"
    elif isinstance(reply, FetchReply):
        records = sum(header.record_count for _, header in iter_batches(reply.records))
        what = f"{records} records, committed {reply.high_watermark}"
        if reply.diverging is not None:
            what = f"parted at {reply.diverging.end_offset} after epoch {reply.diverging.epoch}"
        elif reply.snapshot is not None:
            what = f"take snapshot {reply.snapshot.end_offset} of epoch {reply.snapshot.epoch}"
    elif isinstance(reply, SnapshotReply):
        what = (
            f"part at byte {reply.position}, the last"
            if len(reply.data) + reply.position == reply.size_bytes
            else "part"
        )
    if reply.error is not ErrorCode.NONE:
        what = reply.error.name
    return f"{what} (epoch {reply.epoch}{leader})"


def blocks(text: str) -> list[tuple[list[str], str]]:
    """(comment and command lines, expected outcome) of each block."""
    found = []
    for block in text.strip("\n").split("\n\n"):
        head, _, outcome = block.partition(f"\n{RULE}")
        found.append((head.splitlines(), outcome.lstrip("\n")))
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    stage = Stage()
    written = []
    for head, _ in blocks(path.read_text()):
        commands = [line for line in head if not line.startswith("#")]
        outcome = [line for command in commands for line in stage.run(command)]
        written.append("\n".join([*head, RULE, *outcome]))
    text = "\n\n".join(written) + "\n"
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(text)
    assert text == path.read_text()
