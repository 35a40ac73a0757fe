"""Two brokers that follow each other, driven by random schedules: fetchers, fetch sessions and the Fetch handler, without a network.

Requests and answers lie on two connections, in order, and stay there as long as the schedule likes; connections break, sessions are
thrown away, metadata reaches each broker in its own time, leaders change and change back. Both replicas are in sync all along, so
what is committed must stay; and once everything arrives, every partition must be fetched to its end without a break.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from barnabas.broker.api.access import FULL_ACCESS
from barnabas.broker.api.call import Call, ConnectionLogin, Pending
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.handlers import fetch as fetch_handler
from barnabas.broker.handlers import offsets as offsets_handler
from barnabas.broker.image.image import BrokerImage, MetadataImage
from barnabas.broker.image.records import RegisteredEndpoint
from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind
from barnabas.broker.replica.core.fetch_sessions import FetchSessions
from barnabas.broker.replica.core.isr import InSyncReplicas
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.core.throttle import ReplicationThrottles
from barnabas.broker.replica.fetcher import Fetchers
from barnabas.broker.scheduling.slices import Slices
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.protocol.schema import decode, encode
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from tests.support.rng import SeededRng
from tests.support.simulation.values import values

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
PARTITIONS = 5
STEPS = 600
HEAL_MS = 10_000


class Due:
    """A timer."""

    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.deadline_ms = at_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class State(NamedTuple):
    leader: int
    epoch: int


class Sent(NamedTuple):
    """A request on its way, or its answer."""

    request: Any
    done: Callable[[Any], None]


class Peer:
    """One broker's connection to the other: what was sent and not read, and what was read and not answered."""

    def __init__(self, target: Broker) -> None:
        self.target = target
        self.unread: deque[Sent] = deque()
        self.unanswered: deque[tuple[Sent, Any]] = deque()  # with the response or the Pending of it

    def send(self, request: Any, done: Callable[[Any], None], *, timeout_ms: int) -> None:
        version = type(request).VERSIONS[1]
        self.unread.append(Sent(decode(type(request), encode(request, version), version), done))

    def serve(self) -> None:
        """The other side reads the next request."""
        if self.unread:
            sent = self.unread.popleft()
            request = sent.request
            family = fetch_handler if isinstance(request, FetchRequest) else offsets_handler
            handle, refuse = family.HANDLERS[type(request)]
            call = Call(request, type(request).VERSIONS[1], request.API_KEY, "", self.target, "")  # type: ignore[arg-type]
            try:
                outcome = handle(self.target, call)
            except BrokerError as error:
                outcome = refuse(call, error)
            self.unanswered.append((sent, outcome))

    def deliver(self) -> None:
        """The oldest answer arrives, if there is one."""
        if not self.unanswered:
            return
        sent, outcome = self.unanswered[0]
        if isinstance(outcome, Pending):
            if not outcome.resolved:
                return
            outcome = outcome.response
        self.unanswered.popleft()
        version = type(sent.request).VERSIONS[1]
        sent.done(decode(type(outcome), encode(outcome, version), version))

    def cut(self) -> None:
        """The connection ends."""
        waiting = [sent for sent, _ in self.unanswered] + list(self.unread)
        for _, outcome in self.unanswered:
            if isinstance(outcome, Pending):
                outcome.closed()
        self.unread.clear()
        self.unanswered.clear()
        for sent in waiting:
            sent.done(PeerError(PeerErrorKind.LOST, "cut"))


class Broker:
    """What fetchers and the handler need of a node; its own connection to the other one. It is its own clock."""

    listener_name = "PLAINTEXT"
    client_port = 50_000
    login: ConnectionLogin | None = None
    access = FULL_ACCESS
    software = ("", "")
    fetch_max_bytes = 1 << 20

    def __init__(self, node_id: int, world: Schedule) -> None:
        self.traffic = None  # nothing is counted
        self.node_id = node_id
        self.world = world
        self.config = BrokerConfig(
            {
                "node.id": str(node_id),
                "replica.fetch.max.bytes": str(world.rng.choice((1, 300, 1 << 20))),
                "replica.fetch.response.max.bytes": str(world.rng.choice((1, 300, 1 << 20))),
            }
        )
        self.reactor = self.clock = self.replicas = self.server = self.peers = self.listing = self.current_image = self
        self.waiting: list[Callable[[], None]] = []
        self.timers: list[Due] = []
        self.states = [State(-1, -1)] * PARTITIONS
        self.throttles = ReplicationThrottles(self.config)
        self.fetch_sessions = FetchSessions(SeededRng(world.rng), self.monotonic_ms, slots=10)
        self.image = MetadataImage(
            brokers={
                each: BrokerImage(
                    each,
                    each,
                    bytes(16),
                    (RegisteredEndpoint(name="PLAINTEXT", host=f"b{each}", port=9092, security_protocol=0),),
                    (),
                    None,
                    False,
                    False,
                    (),
                )
                for each in (1, 2)
            }
        )
        disk = MemoryDisk()
        self.all = [self._replica(disk, number) for number in range(PARTITIONS)]
        slices = Slices(lambda turn: self.call_later(0, turn), self._fail, on_busy=lambda: None, on_idle=lambda: None)
        self.fetchers = Fetchers(self, self.config, self, self, self.throttles, slices)  # type: ignore[arg-type]
        self.peer: Peer

    def _replica(self, disk: MemoryDisk, number: int) -> Replica:
        config = LogConfig(segment_bytes=500)
        log = PartitionLog.open(disk, f"t-{number}", config, LogOpening(now_ms=NOW_MS, topic_id=TOPIC_ID, clean=False))
        return Replica(
            "t",
            number,
            TOPIC_ID,
            log,
            node_id=self.node_id,
            clock=self,
            request_sync=lambda replica: self.soon(lambda: self._synced(replica)),
            in_sync=InSyncReplicas(self.node_id),
        )

    @staticmethod
    def _synced(replica: Replica) -> None:
        end = replica.log.log_end_offset
        replica.log.mark_synced(end)
        replica.on_synced(end)

    @staticmethod
    def _fail(error: Exception) -> None:
        raise error

    # -- the node

    def monotonic_ms(self) -> int:
        return self.world.now_ms

    def now_ms(self) -> int:
        return NOW_MS + self.world.now_ms

    def soon(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Due:
        due = Due(self.world.now_ms + max(delay_ms, 0), callback)
        self.timers.append(due)
        return due

    def end_of_wake_up(self) -> None:
        while self.waiting:
            callbacks, self.waiting[:] = self.waiting[:], []
            for callback in callbacks:
                callback()

    def on_time(self) -> None:
        due = [timer for timer in self.timers if timer.deadline_ms <= self.world.now_ms]
        self.timers = [timer for timer in self.timers if timer.deadline_ms > self.world.now_ms and timer.callback]
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def get(self, topic: str, partition: int) -> Replica | None:
        return self.all[partition]

    def leader(self, topic: str, partition: int) -> Replica:
        if not self.all[partition].is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.all[partition]

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == TOPIC_ID else None

    def answer_bytes_max(self, wanted: int) -> int:
        return wanted

    def live(self, listener: str) -> list[Any]:
        return []

    def to(self, host: str, port: int, purpose: str, *, node_id: int = -1) -> Peer:
        return self.peer

    # -- metadata

    def learn(self, number: int, state: State) -> None:
        """The image says who leads; an older one than is known does not come."""
        replica = self.all[number]
        if state.epoch <= self.states[number].epoch:
            return
        self.states[number] = state
        if state.leader == self.node_id:
            self.fetchers.unfollow(replica)
            replica.lead(state.epoch, (1, 2), state.epoch, replicas=(1, 2))
        else:
            replica.follow(state.leader, state.epoch, (1, 2), state.epoch)
            if state.leader < 0:
                self.fetchers.unfollow(replica)
            else:
                self.fetchers.follow(replica)


class Schedule:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.brokers = {each: Broker(each, self) for each in (1, 2)}
        for broker in self.brokers.values():
            broker.peer = Peer(self.brokers[3 - broker.node_id])
            broker.fetchers.start()
        self.states = [State(self.rng.choice((1, 2)), 0) for _ in range(PARTITIONS)]
        self.committed: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.written = 0
        for broker in self.brokers.values():
            for number, state in enumerate(self.states):
                broker.learn(number, state)

    def step(self) -> None:
        rng = self.rng
        broker = self.brokers[rng.choice((1, 2))]
        number = rng.randrange(PARTITIONS)
        dice = rng.random()
        if dice < 0.25:
            broker.peer.serve()
        elif dice < 0.55:
            broker.peer.deliver()
        elif dice < 0.72:
            self.append(broker, number)
        elif dice < 0.82:
            self.now_ms += rng.choice((1, 5, 20, 200))
        elif dice < 0.88:
            state = self.states[number]
            self.states[number] = State(rng.choice((-1, 1, 2, 3 - abs(state.leader))), state.epoch + 1)
        elif dice < 0.98:
            broker.learn(number, self.states[number])
        elif dice < 0.99:
            broker.peer.cut()
        else:
            for session_id in list(broker.fetch_sessions._sessions):
                broker.fetch_sessions.close(session_id)
        if rng.random() < 0.1:
            self.now_ms += 15  # a busy machine: time passes before the wake-up ends
        self.settle()

    def append(self, broker: Broker, number: int) -> None:
        if broker.all[number].is_leader:
            self.written += 1
            value = b"%d" % self.written + bytes(self.rng.choice((0, 0, 200)))
            broker.all[number].append(build_batch([NewRecord(None, value, NOW_MS)]))

    def settle(self) -> None:
        """Ends the wake-up on both sides, and looks at what is committed."""
        for broker in self.brokers.values():
            broker.on_time()
            broker.end_of_wake_up()
        for number, committed in enumerate(self.committed):
            for broker in self.brokers.values():
                replica = broker.all[number]
                prefix = values(replica)[: replica.high_watermark]
                shared = min(len(prefix), len(committed))
                assert prefix[:shared] == committed[:shared], f"what was committed of partition {number} has changed"
                committed += prefix[shared:]

    def heal(self) -> None:
        """Everybody hears of the last leaders, and nothing breaks any more. What is followed already is not followed anew."""
        for number, state in enumerate(self.states):
            if state.leader < 0:
                self.states[number] = State(1, state.epoch + 1)
        for broker in self.brokers.values():
            for number, state in enumerate(self.states):
                broker.learn(number, state)
        until_ms = self.now_ms + HEAL_MS
        while self.now_ms < until_ms:
            self.settle()
            if not any(broker.peer.unread for broker in self.brokers.values()) and all(
                map(self.whole, range(PARTITIONS))
            ):
                return
            for broker in self.brokers.values():
                while broker.peer.unread:
                    broker.peer.serve()
                    broker.end_of_wake_up()
                for _ in range(len(broker.peer.unanswered)):
                    broker.peer.deliver()
            self.settle()
            self.now_ms += 5
        behind = [number for number in range(PARTITIONS) if not self.whole(number)]
        raise AssertionError(f"partitions {behind} are not fetched any more")

    def whole(self, number: int) -> bool:
        """Both have the same, and all of it is committed on the leader."""
        first, second = (broker.all[number] for broker in self.brokers.values())
        leader = first if first.is_leader else second
        return leader.high_watermark == first.log.log_end_offset == second.log.log_end_offset

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.heal()
        for number in range(PARTITIONS):
            first, second = (values(broker.all[number]) for broker in self.brokers.values())
            assert first == second == self.committed[number]


# 25, 34: a partition was forgotten in the request that named it again, and never sent any more.
@pytest.mark.parametrize("seed", [*range(16), 25, 34])
def test_everything_is_fetched_and_nothing_committed_is_lost(seed: int) -> None:
    Schedule(seed).run()
