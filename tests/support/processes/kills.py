"""Random schedules of kills under an exactly-once copy, and how long each kill stops the producer and the copy.

A schedule is drawn from a seed: one broker, two, all, the controller and a leader together, the same broker again 0 to
15 s later. Each killed broker is started again after a random time. All the time an idempotent producer writes at a
steady pace to every partition, and a copier (a group, and a transaction for each batch) copies.

A gap is a time without an acknowledgement of one partition, or without a committed transaction while there is something
to copy. Only the time counts during which a majority of the brokers served and was in sync: `Health` asks the brokers
for the in-sync replicas 20 times a second.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster
from tests.support.processes.copying import SOURCE, TARGET, CopyRun, CopyWorker
from tests.support.requests import request_of
from tests.support.simulation.kill_schedule import Kill

TOPICS = (SOURCE, TARGET, "__transaction_state", "__consumer_offsets")
ASK_SECONDS = 0.05  # between two looks at the in-sync replicas
ASK_SECONDS_MAX = 0.5  # of one broker
PER_SECOND = 200
# Longer than an outage of all brokers: after a lost session a member joins anew, and the group waits for the old member.
SESSION_MS = 30_000
FEED_SECONDS = 0.1
SETTLE_SECONDS = 5.0  # after the last kill; its gap ends by then, or is judged as it is


def longest_stretch(stretches: Iterable[tuple[float, float]], excepted: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the longest part of a stretch that lies outside of all excepted times; 0 if there is none."""
    left = [(begin, end) for begin, end in stretches if begin < end]
    for first, last in excepted:
        parts = [part for begin, end in left for part in ((begin, min(end, first)), (max(begin, last), end))]
        left = [(begin, end) for begin, end in parts if begin < end]
    return max((end - begin for begin, end in left), default=0.0)


class Health:
    """Watches whether a majority of the brokers serves and is in sync, in a thread.

    A broker that was killed serves again from its first answer on; what has served once counts until it is killed.

    Attributes:
        running: ids of the brokers that the schedule has started and not killed since.
    """

    def __init__(self, cluster: Cluster, topics: Sequence[str] = TOPICS) -> None:
        self.cluster = cluster
        self.running: set[int] = set(cluster.nodes)
        self._topics = topics
        self._serving: set[int] = set(cluster.nodes)
        self._lock = threading.Lock()
        self._changes: list[tuple[float, bool]] = [(time.monotonic(), True)]
        self._excepted: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops watching."""
        self._over.set()
        self._thread.join()

    def healthy_seconds(self, since: float, until: float) -> float:
        """The longest healthy stretch between two moments."""
        changes = [*self._changes, (until, False)]
        stretches = [
            (max(begin, since), min(end, until)) for (begin, healthy), (end, _) in pairwise(changes) if healthy
        ]
        return longest_stretch(stretches, self._excepted)

    def except_for(self, began: float, ended: float) -> None:
        """The time between these moments does not count, whatever the brokers did."""
        self._excepted.append((began, ended))

    def _run(self) -> None:
        while not self._over.wait(ASK_SECONDS):
            self._look()

    def on_kill(self, node_ids: Iterable[int]) -> None:
        """These brokers are being killed."""
        with self._lock:
            self.running -= set(node_ids)
            self._serving -= set(node_ids)
            self._note()

    def on_start(self, node_id: int) -> None:
        """This broker is being started."""
        with self._lock:
            self.running.add(node_id)

    def _look(self) -> None:
        with self._lock:
            asked = set(self.running)
        answers = {node_id: self._in_sync(node_id) for node_id in asked}
        with self._lock:
            self._serving |= {node_id for node_id, isrs in answers.items() if isrs is not None} & self.running
            self._note([isrs for isrs in answers.values() if isrs is not None])

    def _note(self, answers: Sequence[list[set[int]]] | None = None) -> None:
        """Records a change of health."""
        majority = len(self.cluster.nodes) // 2 + 1
        healthy = self._changes[-1][1]
        if answers:
            healthy = any(all(len(self._serving & isr) >= majority for isr in isrs) for isrs in answers)
        if len(self._serving) < majority:
            healthy = False
        if healthy != self._changes[-1][1]:
            self._changes.append((time.monotonic(), healthy))

    def _in_sync(self, node_id: int) -> list[set[int]] | None:
        """The in-sync replicas of each partition from one broker; None if it does not answer or has no partitions."""
        request = request_of(
            "Metadata", topics=None, allow_auto_topic_creation=False
        )  # an answer about named topics may wait
        try:
            with Wire(self.cluster.nodes[node_id].address, timeout_s=ASK_SECONDS_MAX) as wire:
                answer = wire.call(request, 9)
        except OSError:
            return None
        watched = [topic for topic in answer.topics if topic.name in self._topics]
        return [set(part.isr_nodes) for topic in watched for part in topic.partitions] or None


@dataclass
class Gaps:
    """The gaps that the kills of a schedule caused, in seconds.

    Attributes:
        found: (kind of the kill, "producer" or "copier", seconds).
    """

    found: list[tuple[str, str, float]] = field(default_factory=list)

    def seconds(self) -> list[float]:
        """All of them, ascending."""
        return sorted(seconds for _, _, seconds in self.found)

    def below(self, limit: float) -> float:
        """Which share is shorter."""
        seconds = self.seconds()
        return sum(each < limit for each in seconds) / len(seconds)

    def __str__(self) -> str:
        seconds = self.seconds()

        def at(share: float) -> float:
            return seconds[min(len(seconds) - 1, int(share * len(seconds)))]

        lines = [f"{kind}: {who} {each:.2f} s" for kind, who, each in self.found]
        lines.append(
            f"{len(seconds)} gaps: median {at(0.5):.2f} s, 90 % {at(0.9):.2f} s, 95 % {at(0.95):.2f} s, "
            f"longest {seconds[-1]:.2f} s, below 1 s {self.below(1.0):.0%}"
        )
        return "\n".join(lines)


def killed_copy(cluster: Cluster, folder: Path, client: str) -> CopyRun:
    """Starts the copy during which brokers are killed."""

    def start() -> CopyWorker:
        return CopyWorker(client, cluster.bootstrap, folder, session_ms=SESSION_MS)

    return CopyRun(cluster, folder, per_second=PER_SECOND, start_worker=start)


class Killing:
    """Runs a schedule against a cluster while a copy goes on. The producer writes until the cluster had SETTLE_SECONDS."""

    def __init__(self, run: CopyRun, *, seed: int, start: Callable[[int], None] | None = None) -> None:
        self.run = run
        self.cluster = run.cluster
        self.rng = random.Random(seed)
        self.health = Health(self.cluster)
        self._kills: list[tuple[float, str]] = []
        self._victims: list[int] = []
        self._over = threading.Event()
        self._start = start or (lambda node_id: self.cluster.nodes[node_id].launch())

    def carry_out(
        self, kills: Iterable[Kill], *, excepted: Callable[[], Iterable[tuple[float, float]]] = tuple
    ) -> Gaps:
        """All of them; returns what they cost once the cluster had SETTLE_SECONDS.

        Args:
            excepted: from when until when (monotonic) time does not count, asked at the end.
        """
        feeding = threading.Thread(target=self._feed, name="pace", daemon=True)
        feeding.start()
        time.sleep(2.0)
        for kill in kills:
            time.sleep(kill.after_seconds)  # the schedule's time, which real clients see
            victims = self._choose(kill.kind)
            self._kills.append((time.monotonic(), kill.kind))
            self.health.on_kill(victims)
            self.cluster.kill(*victims)
            time.sleep(kill.down_seconds)  # as above
            for node_id in victims:
                self._start(node_id)
                self.health.on_start(node_id)
            self._victims = victims
        time.sleep(SETTLE_SECONDS)
        self.cluster.wait_in_sync(*TOPICS)
        time.sleep(1.0)
        self._over.set()
        feeding.join()
        self.health.end()
        for began, ended in excepted():
            self.health.except_for(began, ended)
        return self._gaps()

    def _feed(self) -> None:
        """Lets the producer write at its pace, whatever the schedule waits for."""
        while not self._over.wait(FEED_SECONDS):
            self.run.feeder.allow(round(PER_SECOND * FEED_SECONDS))

    def _choose(self, kind: str) -> list[int]:
        nodes = list(self.cluster.nodes)
        if kind == "all":
            return nodes
        if kind == "two":
            return self.rng.sample(nodes, 2)
        if kind == "again" and self._victims:
            return [self.rng.choice(self._victims)]
        if kind == "controller and leader":
            try:
                controller = self.cluster.controller()
                leaders = [part.leader_id for part in self.cluster.partitions(SOURCE)]
            except OSError:  # all were killed a moment ago, and none listens yet
                return [self.rng.choice(nodes)]
            both = {each for each in (controller, self.rng.choice(leaders or [-1])) if each > 0}
            return sorted(both) or [self.rng.choice(nodes)]
        return [self.rng.choice(nodes)]

    def _gaps(self) -> Gaps:
        waits = [("producer", wait) for times in self.run.feeder.times.values() for wait in pairwise(times)]
        waits += [("copier", wait) for wait in self._copier_waits()]
        longest: dict[tuple[int, str], float] = {}
        for who, (began, ended) in waits:
            whose = max((n for n, (at, _) in enumerate(self._kills) if at < ended), default=-1)
            if whose >= 0:
                counted = self.health.healthy_seconds(began, ended)
                longest[whose, who] = max(longest.get((whose, who), 0.0), counted)
        return Gaps([(self._kills[n][1], who, seconds) for (n, who), seconds in sorted(longest.items())])

    def _copier_waits(self) -> list[tuple[float, float]]:
        """From each commit to the next one, without the time in which every acknowledged record had been copied."""
        acknowledged = sorted(self.run.feeder.acknowledged_at)
        waits = []
        for (began, copied), (ended, _) in pairwise(list(self.run.worker.progress)):
            next_one = acknowledged[copied] if copied < len(acknowledged) else ended
            waits.append((max(began, next_one), ended))
        return [(began, ended) for began, ended in waits if began < ended]
