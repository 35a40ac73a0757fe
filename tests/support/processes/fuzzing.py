"""Sends hostile requests to one broker and judges each answer; watches its memory and its descriptors.

Lanes, each with a connection, send requests in groups: what keeps the protocol first, at most one request that breaks
it or that may wait at the end. So a connection that the broker closes costs no other request its answer. An answer must
be whole, decode to its last byte and carry no UNKNOWN_SERVER_ERROR; what breaks the protocol must end the connection.
"""

from __future__ import annotations

import asyncio
import os
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from barnabas.errors import ErrorCode
from barnabas.protocol import registry
from barnabas.protocol.schema import codec
from barnabas.testing import Broker
from tests.support.oracle.wire import Wire
from tests.support.processes.hostile_requests import HostileRequests, RequestTargets, Shot
from tests.support.processes.hostile_values import GROUPS, TOPICS, TRANSACTIONS
from tests.support.requests import codes_in, request_of

LANES = 24
PRODUCED_TOPIC = "produced"  # of the producer beside the requests: `refresh` keeps it
GROUP_SIZE_MAX = 40
PATIENCE_S = 0.15  # for answers that may wait
ANSWER_S_MAX = 60.0  # for all others: far above what any takes on a busy machine
REFRESH_EVERY = 1_000  # requests, after which the world is made anew
CLOSED = re.compile(r"closed by this node: connection=127\.0\.0\.1:(\d+) listener=\S+ reason=(.*)")


@dataclass
class Outcome:
    """The outcomes of the requests."""

    sent: int = 0
    answered: Counter[str] = field(default_factory=Counter)  # by API
    closed: Counter[str] = field(default_factory=Counter)
    without_error: Counter[str] = field(default_factory=Counter)
    waited: int = 0
    ends: list[tuple[int, str]] = field(default_factory=list)  # port of a connection that ended unexpectedly, and why
    faults: list[str] = field(default_factory=list)
    explained: Counter[str] = field(default_factory=Counter)
    codes: Counter[tuple[str, int]] = field(default_factory=Counter)


class Fuzzer:
    """One run against one broker.

    Args:
        log: returns what the broker has logged.
    """

    def __init__(self, address: str, log: Callable[[], str], seed: int) -> None:
        self.address = address
        self._log = log
        self.world = RequestTargets()
        self.requests = HostileRequests(seed, self.world)
        self.outcome = Outcome()
        self._round = 0

    def run(self, count: int) -> Outcome:
        """Sends `count` requests."""
        left = count
        while left:
            self.refresh()
            size = min(left, REFRESH_EVERY)
            asyncio.run(self._volley(size))
            left -= size
        self._explain()
        return self.outcome

    def _explain(self) -> None:
        """Looks up why a connection ended for a valid request: a failed acks=0, or a fenced producer."""
        reasons: dict[int, list[str]] = defaultdict(list)
        for port, reason in CLOSED.findall(self._log()):
            reasons[int(port)].append(reason.strip('"'))
        for port, about in self.outcome.ends:
            if not reasons[port] or "internal error" in reasons[port]:
                self.outcome.faults.append(about)
            else:
                self.outcome.explained[re.sub(r"\d+", "N", reasons[port][-1])] += 1
        self.outcome.ends.clear()

    def refresh(self) -> None:
        """Deletes what hostile requests made, and makes topics, a producer and members that valid requests speak of."""
        world = self.world
        self._round += 1
        world.groups[:] = [f"{name}-{self._round}" for name in GROUPS]  # a member may hold up the group that it is in
        classic, consumer, _ = world.groups
        with Wire(self.address) as wire:
            there = [topic.name for topic in wire.call(request_of("Metadata", topics=None), 8).topics]
            names = [name for name in there if not name.startswith("__") and name != PRODUCED_TOPIC]
            if names:
                wire.call(request_of("DeleteTopics", topic_names=names, timeout_ms=30_000), 5)
            topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in TOPICS]
            created = wire.call(request_of("CreateTopics", topics=topics, timeout_ms=30_000), 7)
            assert [topic.error_code for topic in created.topics] == [0, 0], created
            world.topic_ids[:] = [topic.topic_id for topic in created.topics]
            wire.find_coordinator(classic, 0)
            for number, name in enumerate(TRANSACTIONS):
                wire.find_coordinator(name, 1)
                given = wire.call(request_of("InitProducerId", transactional_id=name, transaction_timeout_ms=60_000), 2)
                if given.error_code == 0:  # else its last transaction is being ended
                    world.producers[number] = (given.producer_id, given.producer_epoch)
            protocols = [{"name": "range", "metadata": b""}]
            joined = wire.call(
                request_of(
                    "JoinGroup",
                    group_id=classic,
                    session_timeout_ms=60_000,
                    rebalance_timeout_ms=500,
                    protocol_type="consumer",
                    protocols=protocols,
                ),
                3,
            )
            synced = request_of(
                "SyncGroup", group_id=classic, generation_id=joined.generation_id, member_id=joined.member_id
            )
            wire.call(synced, 3)
            beat = wire.call(
                request_of(
                    "ConsumerGroupHeartbeat",
                    group_id=consumer,
                    member_id="AAAAAAAAAAAAAAAAAAAAAA",
                    member_epoch=0,
                    rebalance_timeout_ms=10_000,
                    subscribed_topic_names=list(TOPICS),
                    topic_partitions=[],
                ),
                0,
            )
            assert joined.error_code == beat.error_code == 0, (joined, beat)
            world.members[:] = [(joined.member_id, joined.generation_id), (beat.member_id, beat.member_epoch), ("", 0)]

    async def _volley(self, count: int) -> None:
        groups = self._groups(count)
        await asyncio.gather(*(self._lane(groups) for _ in range(LANES)))

    def _groups(self, count: int) -> Iterator[list[Shot]]:
        """Requests in groups: those that may end or hold up their connection come last in theirs."""
        group: list[Shot] = []
        for _ in range(count):
            shot = self.requests.next()
            group.append(shot)
            if shot.closes or shot.cut or shot.may_wait or len(group) >= GROUP_SIZE_MAX:
                yield group
                group = []
        if group:
            yield group

    async def _lane(self, groups: Iterator[list[Shot]]) -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        for group in groups:
            if streams is None:
                streams = await asyncio.open_connection(*self.address.split(":"), limit=1 << 26)
            reader, writer = streams
            if not await self._group(group, reader, writer):
                writer.transport.abort()
                streams = None
        if streams is not None:
            streams[1].transport.abort()

    async def _group(self, group: list[Shot], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Sends a group and takes its answers. Returns whether the connection can go on."""
        outcome = self.outcome
        outcome.sent += len(group)
        *others, last = group
        writer.write(b"".join(shot.frame for shot in others))
        for shot in group:
            if shot is last:  # the answers of all others have come: the end of the connection takes none of them away
                writer.write(shot.frame)
            if shot.cut:
                return False
            try:
                async with asyncio.timeout(PATIENCE_S if shot.may_wait else ANSWER_S_MAX):
                    frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            except TimeoutError:
                if not shot.may_wait:
                    self._fault(shot, "is not answered")
                outcome.waited += 1
                return False
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                    self._fault(shot, f"is answered in part: {error.partial[:40]!r}")
                elif not shot.closes:
                    outcome.ends.append((writer.get_extra_info("sockname")[1], _about(shot, "ends the connection")))
                outcome.closed[shot.api.name] += 1
                return False
            self._judge(shot, frame)
        return True

    def _judge(self, shot: Shot, frame: bytes) -> None:
        if shot.closes:
            self._fault(shot, f"is answered and breaks the protocol: {frame[:60]!r}")
            return
        name = shot.api.name
        try:
            (correlation,) = struct.unpack_from(">i", frame)
            at = 4 + (1 if registry.response_header_version(shot.api.key, shot.version) else 0)
            answer, end = codec(shot.api.response, shot.version).decode(frame, at)
        except Exception as error:
            self._fault(shot, f"has an answer that does not decode: {error!r}")
            return
        if correlation != shot.correlation or end != len(frame):
            self._fault(shot, f"has an answer with correlation {correlation}, {end} of {len(frame)} bytes decoded")
        codes = codes_in(answer)
        self.outcome.answered[name] += 1
        self.outcome.without_error[name] += codes <= {0}
        for code in codes:
            self.outcome.codes[name, code] += 1
        if ErrorCode.UNKNOWN_SERVER_ERROR in codes:
            self._fault(shot, "is answered with UNKNOWN_SERVER_ERROR")

    def _fault(self, shot: Shot, what: str) -> None:
        self.outcome.faults.append(_about(shot, what))


def _about(shot: Shot, what: str) -> str:
    about = f"request {shot.number}, {shot.api.name} version {shot.version} with {shot.what}, {what}"
    return f"{about}: {shot.frame[:300].hex()}"


def descriptors(broker: Broker) -> int:
    """Open descriptors of the broker's process."""
    return len(os.listdir(f"/proc/{broker.broker(1).pid}/fd"))


def internal_errors(broker: Broker) -> list[str]:
    """Unhandled exceptions in the broker's log."""
    return re.findall(
        r"^.*(?:Traceback|internal error|CRITICAL| failed$).*(?:\n(?!\d{4}-).*)*", broker.broker(1).log, re.MULTILINE
    )
