"""Several brokers in a simulated world, and the invariants that are checked after every event.

`Watch` checks a machine after each delivery to it and each change of its disk, and every log of it that has changed:
one leader an epoch; epochs and high watermarks never decrease; the committed prefix is the same on every node, without
holes; the newest leader has all of it. It reads the nodes' memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol.records import iter_batches
from barnabas.testing.simulation.world import Machine, World
from tests.support.simulation.workload import PARTITIONS, Broker

METADATA = "__cluster_metadata-0"
READ_BYTES = 1 << 14


def names(count: int) -> list[str]:
    """Machines of brokers 1 to `count`."""
    return [f"broker-{number}" for number in range(1, count + 1)]


def bootstrap(count: int = 3) -> str:
    """The bootstrap addresses for clients."""
    return ",".join(f"{name}:9092" for name in names(count))


class ClusterBroker(Broker):
    """The program of one broker among several, by default a controller, too."""

    def __init__(self, node_id: int, count: int = 3, /, **settings: str) -> None:
        name = f"broker-{node_id}"
        super().__init__(
            **{
                "node.id": str(node_id),
                "listeners": f"PLAINTEXT://{name}:9092,CONTROLLER://{name}:9093",
                "controller.quorum.voters": ",".join(
                    f"{number}@{other}:9093" for number, other in enumerate(names(count), 1)
                ),
                "num.partitions": str(PARTITIONS),
                "default.replication.factor": str(count),
                "min.insync.replicas": str(max(1, count - 1)),
                "group.initial.rebalance.delay.ms": "0",
                "initial.broker.registration.timeout.ms": "600000",  # no supervisor starts a broker again that gives up
                "log.cleaner.enable": "false",  # it works on each replica at its own time: logs could not be compared
                **settings,
            }
        )


class Split(AssertionError):
    """Nodes disagree about what they must agree on."""


@dataclass
class Ledger:
    """The batches of one log that any node has committed: (last offset, epoch, checksum) by base offset."""

    name: str
    batches: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    end: int = 0
    leaders: dict[int, str] = field(default_factory=dict)  # by epoch

    def check(self, who: str, buffer: Buffer, at: int, until: int, *, cleaned: bool = False) -> int:
        """Compares the batches in [at, until) with the ledger, and adds new ones. Returns where they end.

        Where `cleaned`, batches may be missing or have fewer records: each replica's cleaner works at its own time.
        """
        for _, header in iter_batches(buffer):
            base = header.base_offset
            if base >= until:
                break
            if base > at and not cleaned:
                raise Split(f"{self.name}: {who} has a hole from {at} to {base}")
            mine = (header.last_offset, header.leader_epoch, header.crc)
            known = self.batches.get(base)
            at = header.last_offset + 1
            if known == mine or (cleaned and known is not None and known[:2] == mine[:2]):
                continue
            if known is not None or base < self.end:
                raise Split(f"{self.name}: {who} has {mine} committed at {base}, others {known}")
            self.batches[base] = mine
            self.end = at
        return at

    def elect(self, who: str, epoch: int) -> bool:
        """Notes a leader; returns whether it is new."""
        known = self.leaders.setdefault(epoch, who)
        if known.partition("#")[0] != who.partition("#")[0]:
            raise Split(f"{self.name}: {known} and {who} both lead in epoch {epoch}")
        if known == who:
            return False
        self.leaders[epoch] = who
        return True


@dataclass
class Seen:
    """The state of one node's log at its last check."""

    epoch: int = -1
    high_watermark: int = -1
    checked: int = 0
    leads: bool = False
    log: Any = None


class Watch:
    """Checks the nodes of a world after every event.

    Attributes:
        cleaned: the brokers' log cleaners work.
        checks: how often a log that had changed was checked.
        on_disk_change, on_delivery: what the test does at such an event, after the check.
        may_lose: what was committed may be lost from here on: every disk forgets at once what was not synced.
    """

    def __init__(self, world: World, brokers: dict[str, Broker], *, cleaned: bool = False) -> None:
        self.world = world
        self.cleaned = cleaned
        self.brokers = brokers
        self.ledgers: dict[str, Ledger] = {}
        self.replicas: dict[Replica, Seen] = {}  # of every life of every node
        self.quorums: dict[str, Seen] = {}  # by process
        self.quorum_epochs: dict[str, int] = {}  # by machine: survives its processes
        self.checks = 0
        self.may_lose = False
        self.on_disk_change: Callable[[str, str], None] = lambda machine, what: None
        self.on_delivery: Callable[[str, str], None] = lambda source, target: None
        world.network.after_delivery = self._delivered
        for name in brokers:
            self._wire(world.machine(name))

    def _wire(self, machine: Machine) -> None:
        def before(what: str) -> None:
            self.look(machine.name)
            self.on_disk_change(machine.name, what)

        machine.disk.before_change = before

    def _delivered(self, source: str, target: str) -> None:
        if target in self.brokers:
            self.look(target)
        self.on_delivery(source, target)

    def forget(self, name: str) -> None:
        """A machine got a new disk: it remembers nothing of the quorum's epochs."""
        self.quorum_epochs.pop(name, None)

    def look(self, name: str) -> None:
        """Checks one machine; a violation ends the run."""
        try:
            self._look(name)
        except Split as split:
            self.world.loop.call_exception_handler({"message": "nodes disagree", "exception": split})

    def _look(self, name: str) -> None:
        machine, node = self.world.machine(name), self.brokers[name].node
        if node is None or machine.process is None or node.failure is not None or not is_up(node):
            return
        who = machine.process.label
        self._look_at_quorum(name, who, node)
        for replica in node.replicas.all():
            seen = self.replicas.get(replica)
            if seen is None or seen.log is not replica.log:
                seen = self.replicas[replica] = Seen(log=replica.log)
            epoch, high_watermark, leads = replica.leader_epoch, replica.high_watermark, replica.is_leader
            if (
                epoch == seen.epoch and high_watermark == seen.high_watermark and leads == seen.leads
            ) or replica.failed:
                continue
            ledger = self._ledger(f"{replica.topic}-{replica.partition}/{replica.topic_id.hex()}")

            def read(offset: int, end: int, log: Any = replica.log) -> Buffer:
                try:
                    return log.read(offset, READ_BYTES, end_offset=end).records  # type: ignore[no-any-return]  # of a log that is Any
                except BrokerError as error:
                    if error.code is not ErrorCode.CORRUPT_MESSAGE:
                        raise
                    return b""  # a test damaged it: readers are told, and there is nothing to compare

            self._compare(who, ledger, seen, epoch, high_watermark, leads, replica.log, read)

    def _look_at_quorum(self, name: str, who: str, node: Node) -> None:
        quorum: Any = node.quorum
        epoch, high_watermark, leads = quorum.leader_epoch, quorum.high_watermark, quorum.is_leader
        if epoch < self.quorum_epochs.get(name, -1):
            raise Split(f"{METADATA}: {who} goes back from epoch {self.quorum_epochs[name]} to {epoch}")
        self.quorum_epochs[name] = epoch
        raft_log = quorum._log
        seen = self.quorums.get(who)
        if seen is None or seen.log is not raft_log:
            seen = self.quorums[who] = Seen(log=raft_log)
        if (epoch, high_watermark, leads) == (seen.epoch, seen.high_watermark, seen.leads):
            return

        def read(offset: int, end: int) -> Buffer:
            return raft_log.read(max(offset, raft_log.start_offset), READ_BYTES)  # type: ignore[no-any-return]  # as above

        self._compare(who, self._ledger(METADATA), seen, epoch, high_watermark, leads, raft_log, read)

    def _compare(
        self,
        who: str,
        ledger: Ledger,
        seen: Seen,
        epoch: int,
        high_watermark: int,
        leads: bool,
        log: Any,
        read: Callable[[int, int], Buffer],
    ) -> None:
        self.checks += 1
        cleaned = ledger.name != METADATA and log.config.compacted and self.cleaned
        if epoch < seen.epoch:
            raise Split(f"{ledger.name}: {who} goes back from epoch {seen.epoch} to {epoch}")
        if high_watermark < seen.high_watermark and not self.may_lose:
            raise Split(f"{ledger.name}: {who}'s high watermark goes back: {seen.high_watermark} → {high_watermark}")
        if leads and (not seen.leads or epoch != seen.epoch) and ledger.elect(who, epoch):
            seen.checked = 0
        if leads and seen.checked == 0 and epoch == max(ledger.leaders) and not self.may_lose:
            self._check_complete(who, ledger, log, read, cleaned)
        start = log.start_offset if ledger.name == METADATA else log.log_start_offset
        at = max(seen.checked, start)
        while at < high_watermark:
            end = ledger.check(who, read(at, high_watermark), at, high_watermark, cleaned=cleaned)
            if end <= at:
                break
            at = end
        seen.checked = max(seen.checked, at)
        seen.epoch, seen.high_watermark, seen.leads = epoch, high_watermark, leads

    def _check_complete(
        self, who: str, ledger: Ledger, log: Any, read: Callable[[int, int], Buffer], cleaned: bool
    ) -> None:
        """Checks that a new leader has every committed batch.

        An earlier leader that does not know of its successor may miss what the successor has committed.
        """
        end = log.end_offset if ledger.name == METADATA else log.log_end_offset
        if end < ledger.end:
            raise Split(f"{ledger.name}: {who} leads with a log that ends at {end}; committed is {ledger.end}")
        at = log.start_offset if ledger.name == METADATA else log.log_start_offset
        while at < ledger.end:
            reached = ledger.check(who, read(at, ledger.end), at, ledger.end, cleaned=cleaned)
            if reached <= at:
                break
            at = reached

    def _ledger(self, name: str) -> Ledger:
        if name not in self.ledgers:
            self.ledgers[name] = Ledger(name)
        return self.ledgers[name]


def is_up(node: Node) -> bool:
    """Whether the node's metadata log is open."""
    return getattr(node.quorum, "_log", None) is not None
