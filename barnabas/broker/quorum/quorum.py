"""Quorum: this node's member of the metadata quorum (KIP-595, KIP-630, KIP-996). The shell of `RaftMachine`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from barnabas.broker.api.call import Done
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind
from barnabas.broker.peers.peers import Peers
from barnabas.broker.quorum.core import wire
from barnabas.broker.quorum.core.delivery import ListenerContext, RaftListener
from barnabas.broker.quorum.core.following import Installation
from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.core.messages import (
    BeginEpoch,
    EndEpoch,
    Failure,
    Fetch,
    OutboundRequest,
    RaftRequest,
    RaftResponse,
    SnapshotFetch,
    Vote,
)
from barnabas.broker.quorum.core.quorum_state import read_quorum_state, write_quorum_state
from barnabas.broker.quorum.core.raft_log import RaftLog
from barnabas.broker.quorum.core.roles import Timing
from barnabas.broker.quorum.core.voters import VotersDisagree
from barnabas.broker.quorum.core.waiting_calls import WaitingCommits, WaitingFetches
from barnabas.broker.quorum.snapshot_writer import SnapshotWriter
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BarnabasError, BrokerError, ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.loggers import RateLimitedLogger, logger
from barnabas.ports import Disk
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.protocol.records import EncodedRecords

log = logger("kafka.raft")

# Purposes of connections to voters: answers come in request order, and a vote must not wait behind a long-polled fetch.
FETCHES: Final = "quorum"
VOTES: Final = "election"
STOP_MS: Final = 1_000  # how long a stopping leader waits until the others are notified
FAILURES: Final = {PeerErrorKind.REFUSED: Failure.REFUSED, PeerErrorKind.LOST: Failure.LOST}


class Quorum:
    """This node's member of the quorum; it does not know the content of the encoded values.

    Each input goes to the machine, then `_advance` carries out its outputs. All appends of one wake-up advance together at its end. A sync
    runs off the loop; the next one covers everything appended during it. After a failure of the disk nothing is answered any more: a failed
    sync is never retried.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        disk: Disk,
        peers: Peers,
        *,
        on_disk_failed: Callable[[OSError], None],
    ) -> None:
        """Uses neither disk nor network.

        `on_disk_failed` is called once after the metadata log's `disk` failed: the quorum has stopped, and a leader has notified the
        others.
        """
        self.reactor = reactor
        self.config = config
        self.disk = disk
        self.peers = peers
        self.node_id = config.node_id
        self.cluster_id = ""
        self.directory_id = b""
        self.voters: tuple[int, ...] = tuple(config.voter_endpoints) or (self.node_id,)
        self.limited_log = RateLimitedLogger(log, reactor.clock.monotonic_ms)
        self._on_disk_failed = on_disk_failed
        self._timing = Timing.from_config(config)
        self._log: RaftLog
        self._machine: RaftMachine
        self._running = self._started = False
        self._delivery: ListenerContext
        self.snapshots: SnapshotWriter  # writes snapshots of the log, from `open` on
        self._installer: _SnapshotInstaller
        self._commits = WaitingCommits()
        self._fetches = WaitingFetches()
        self._advancing = self._advance_again = self._advance_due = self._syncing = False
        self._timer: Timer | None = None
        self._quiet: asyncio.Future[None] | None = None  # set while `stop` waits

    # --- start and stop -------------------------------------------------------------------------------------------

    def open(self, cluster_id: str, directory_id: bytes, listener: RaftListener, *, clean: bool) -> None:
        """Opens the log and delivers its snapshot to `listener`; for a sole voter the whole log, because it is all committed.

        Sends nothing and writes no record. Blocks; start-up only. After a `clean` stop the log needs no check.

        Raises:
            NotTheSoleVoter: the directory holds a set of voters other than this node alone.
            VotersDisagree: quorum-state names other voters than the configuration.
            InvariantViolated: the log is damaged.
            MalformedQuorumState: quorum-state is damaged.
            OSError: the disk failed.
        """
        self.cluster_id, self.directory_id = cluster_id, directory_id
        alone = self.voters == (self.node_id,)
        self._log = RaftLog(self.disk, self.config, self.reactor.clock, clean=clean, alone=alone)
        state = read_quorum_state(self.disk, CLUSTER_METADATA_FOLDER)
        directory = f"{self.disk.root}/{CLUSTER_METADATA_FOLDER}"
        self._log.voter_set.check(self.node_id, state, self.voters, directory=directory)
        self._machine = RaftMachine(
            self.node_id,
            self.voters,
            self._log,
            replace(state, version=1 if self._log.voter_set.kraft_version else 0),
            store=lambda state: write_quorum_state(self.disk, CLUSTER_METADATA_FOLDER, state),
            random=self.reactor.rng.random,
            timing=self._timing,
            limited_log=self.limited_log,
            directory_id=directory_id,
        )
        self._running = True
        self.snapshots = SnapshotWriter(
            self.reactor.clock,
            self.config,
            self.disk,
            self._log,
            lambda: self._machine.high_watermark if self._running else None,
        )
        self._installer = _SnapshotInstaller(self.reactor, self.snapshots, self._machine, self._advance, self.fail)
        self._delivery = ListenerContext(listener, self._log)
        self._delivery.deliver_snapshot()
        if self.voters == (self.node_id,):
            self._log.sync_now()
            self._machine.high_watermark = self._log.end_offset
            self._delivery.deliver_committed(self._machine)

    async def start(self) -> None:
        """Begins to vote, to follow or to look for a leader. A sole voter leads when this returns. Raises OSError."""
        now_ms = self.reactor.clock.monotonic_ms()
        self._started = True
        self._machine.start(now_ms)
        if self.voters == (self.node_id,):
            self._log.sync_now()
            self._machine.on_synced(now_ms)
        self._advance()

    async def stop(self) -> None:
        """A leader makes the others elect another, for at most a second; then syncs and closes the log. Raises OSError."""
        if not self._running:
            return
        machine = self._machine
        if machine.is_leader and len(self.voters) > 1:
            machine.resign(self.reactor.clock.monotonic_ms())
            self._quiet = asyncio.get_running_loop().create_future()
            limit = self.reactor.call_later(STOP_MS, self._be_quiet)
            self._advance()
            await self._quiet
            limit.cancel()
        self.close()

    def close(self) -> None:
        """Syncs and closes the log at once. Drops waiting calls. Raises OSError."""
        if self._running:
            self.kill()
            self._log.close()

    def kill(self) -> None:
        """Ends at once, as a crash does: writes nothing and notifies no other node."""
        if self._running:
            self._running = False
            self._delivery.stopped = True
        self._commits.clear()
        self._fetches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _be_quiet(self) -> None:
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def leader_id(self) -> int:
        """−1 if unknown."""
        return self._machine.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._machine.epoch

    @property
    def is_leader(self) -> bool:
        """Whether this node leads; `on_leading` follows once that is committed."""
        return self._running and self._machine.is_leader

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""
        return self._machine.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._log.end_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset in the log."""
        return self._log.start_offset

    @property
    def member(self) -> RaftMachine | None:
        """Role, vote and leadership of this node, read-only; None before `open` and after the end."""
        return self._machine if self._running else None

    def leader_endpoint(self) -> tuple[int, str, int] | None:
        """Node id, host and port of the leader; None if it is unknown, or is a sole voter without a listener."""
        leader_id = self.leader_id
        endpoint = self.config.voter_endpoints.get(leader_id)
        return None if endpoint is None else (leader_id, endpoint.host, endpoint.port)

    # --- the active controller ------------------------------------------------------------------------------------

    def append(self, values: list[bytes] | EncodedRecords) -> int:
        """Writes one batch; returns the last offset. Raises BrokerError(NOT_CONTROLLER) if this node does not lead, or its disk failed."""
        if not self.is_leader:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} does not lead the metadata quorum")
        try:
            last_offset = self._machine.append(values)
        except OSError as error:
            self.fail(error)
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"the metadata log cannot be written: {error}") from error
        self._advance_soon()
        return last_offset

    def when_committed(self, next_offset: int, done: Done[None]) -> None:
        """Calls `done(None)` once everything below `next_offset` is committed and delivered, in the order of offsets, never from this call.

        NOT_CONTROLLER if leadership is lost first: the records may still be committed, or not.
        """
        self._commits.add(next_offset, self._machine, done)
        self._advance_soon()

    def resign(self) -> None:
        """Notifies the other voters. No effect if this node does not lead."""
        if self.is_leader:
            self._machine.resign(self.reactor.clock.monotonic_ms())
            self._advance_soon()

    # --- requests of other members --------------------------------------------------------------------------------

    def answer(self, request: RaftRequest, max_bytes: int, done: Callable[[RaftResponse], None]) -> None:
        """At once, or later for a fetch without new records. Views are valid during `done`. Raises BrokerError(BROKER_NOT_AVAILABLE)."""
        if not self._running:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, "the quorum of this node is not running")
        now_ms = self.reactor.clock.monotonic_ms()
        try:
            reply = self._reply(request, max_bytes, now_ms)
            if reply is None and isinstance(request, Fetch):
                if self._fetches.full:
                    reply = self._machine.fetch_reply(request, max_bytes, waited=True)
                else:
                    wait_ms = min(request.max_wait_ms, self._timing.fetch_timeout_ms)
                    self._fetches.add(request, max_bytes, now_ms + wait_ms, done)
        except (OSError, InvariantViolated) as error:
            self.fail(error)
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error
        if reply is not None:
            done(reply)
        self._advance_soon()

    def _reply(self, request: RaftRequest, max_bytes: int, now_ms: int) -> RaftResponse | None:
        machine = self._machine
        if isinstance(request, Vote):
            return machine.on_vote(request, now_ms)
        if isinstance(request, BeginEpoch):
            return machine.on_begin_epoch(request, now_ms)
        if isinstance(request, EndEpoch):
            return machine.on_end_epoch(request, now_ms)
        if isinstance(request, SnapshotFetch):
            return machine.on_snapshot_fetch(replace(request, max_bytes=min(request.max_bytes, max_bytes)), now_ms)
        return machine.on_fetch(request, max_bytes, now_ms)

    def forget(self, request: RaftRequest) -> None:
        """Drops the waiting fetch of a disconnected requester."""
        self._fetches.forget(request)

    # --- own requests ---------------------------------------------------------------------------------------------

    def _transmit(self, outgoing: OutboundRequest) -> None:
        endpoint = self.config.voter_endpoints[outgoing.to]
        message = wire.request_message(
            outgoing.request,
            cluster_id=self.cluster_id,
            to=outgoing.to,
            directory_id=self.directory_id,
            endpoint=self.config.voter_endpoints.get(self.node_id),
            max_bytes=self._max_bytes(outgoing.request),
        )
        purpose = FETCHES if isinstance(outgoing.request, Fetch | SnapshotFetch) else VOTES
        peer = self.peers.to(endpoint.host, endpoint.port, purpose, node_id=outgoing.to)
        peer.send(message, lambda answer: self._on_answer(outgoing, answer), timeout_ms=outgoing.timeout_ms)

    def _max_bytes(self, request: RaftRequest) -> int:
        if isinstance(request, SnapshotFetch):
            return self.config.get_int("controller.quorum.fetch.snapshot.max.bytes")
        return self.config.get_int("controller.quorum.fetch.max.bytes")

    def _on_answer(self, outgoing: OutboundRequest, answer: wire.ReplyMessage | PeerError) -> None:
        if not self._running:
            return
        now_ms = self.reactor.clock.monotonic_ms()
        to, request, _ = outgoing
        try:
            if isinstance(answer, PeerError):
                self._machine.on_failure(to, request, FAILURES.get(answer.kind, Failure.SILENT), now_ms)
            else:
                self._machine.on_reply(to, request, wire.read_reply(answer), now_ms)
        except RemoteProtocolError as error:
            log.error("Node sent an invalid answer to the metadata quorum: peer=%d error=%s", to, error)
            self._machine.on_failure(to, request, Failure.SILENT, now_ms)
        except (OSError, InvariantViolated, VotersDisagree) as error:
            self.fail(error)
            return
        self._advance_soon()

    # --- after every input ----------------------------------------------------------------------------------------

    def _advance_soon(self) -> None:
        if not self._advance_due:
            self._advance_due = True
            self.reactor.soon(self._advance)

    def _advance(self) -> None:
        """Carries out the machine's outputs; loops if a listener appends in between."""
        self._advance_due = False
        if not self._running:
            return
        if self._advancing:
            self._advance_again = True
            return
        self._advancing = True
        try:
            self._advance_again = True
            while self._advance_again and self._running:
                self._advance_again = False
                self._round()
        except Exception as error:
            self.fail(error)  # the listener missed delivered batches: the node cannot continue
        finally:
            self._advancing = False
        if self._running:
            self._installer.start()
            self._start_sync()
            self._arm()

    def _round(self) -> None:
        machine = self._machine
        for outgoing in machine.take_outgoing():
            self._transmit(outgoing)
        self._delivery.advance(machine)
        if not self._delivery.held:
            self._commits.release(self._delivery.next_offset, machine)
        self._fetches.release(machine, self.reactor.clock.monotonic_ms())
        if self._quiet is not None and machine.ended_quietly:
            self._be_quiet()

    def hold(self) -> bool:
        """The listener gets nothing more until `resume`. False while the log is being opened: then it must finish before it returns."""
        self._delivery.held = self._started
        return self._started

    def resume(self) -> None:
        self._delivery.held = False
        self._advance_soon()

    def _arm(self) -> None:
        times = (self._machine.wake_at_ms(), self._fetches.next_deadline_ms())
        at_ms = min((at_ms for at_ms in times if at_ms is not None), default=None)
        if self._timer is not None:
            if self._timer.callback is not None and (at_ms is None or self._timer.deadline_ms <= at_ms):
                return  # an early call is harmless
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer = self.reactor.call_later(at_ms - self.reactor.clock.monotonic_ms(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._running:
            return
        try:
            self._machine.on_timer(self.reactor.clock.monotonic_ms())
        except (OSError, InvariantViolated) as error:
            self.fail(error)
            return
        self._advance()

    # --- durability -----------------------------------------------------------------------------------------------

    def _start_sync(self) -> None:
        if self._machine.wants_sync and not self._syncing:
            self._syncing = True
            self.reactor.scope.start(self._sync(), name="quorum sync")

    async def _sync(self) -> None:
        raft_log = self._log
        try:
            while self._running and self._machine.wants_sync:
                generation, end_offset = raft_log.generation, raft_log.end_offset
                await self.disk.sync(raft_log.unsynced_files())
                self._on_synced(generation, end_offset)
        except OSError as error:
            self.fail(error)
        finally:
            self._syncing = False

    def _on_synced(self, generation: int, end_offset: int) -> None:
        if not self._running:
            return
        if generation == self._log.generation:  # else the synced part was truncated
            self._log.mark_synced(end_offset)
            self._machine.on_synced(self.reactor.clock.monotonic_ms())
        self._advance()

    def fail(self, error: BaseException) -> None:
        """The disk or the listener failed: ends the node. A leader first resigns, so that the others need not wait for a timeout."""
        if not self._running:
            return
        log.error("Node leaves the metadata quorum: node_id=%d error=%s", self.node_id, error)
        try:
            self._machine.resign(self.reactor.clock.monotonic_ms())
            for outgoing in self._machine.take_outgoing():
                self._transmit(outgoing)
        except (OSError, BarnabasError) as trouble:
            log.error("Leadership of the metadata quorum could not be resigned: error=%s", trouble)
        self.kill()
        if isinstance(error, OSError):
            self._on_disk_failed(error)
        else:
            self.reactor.soon(lambda: self.reactor.fatal(error))  # after the requests just sent


class _SnapshotInstaller:
    """Replaces a follower's log by a snapshot of the leader (KIP-630), without blocking the loop.

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
