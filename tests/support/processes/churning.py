"""Members that join, leave and are killed: copiers of one group, with a change every 200 ms until `stop_changes`.

Each member has a transactional id. The next member with the same id ends the transaction that the former one left open,
as a restarted process would. A change is drawn from a seed: a member joins, leaves by SIGTERM, or is killed.

The group has committed offset 0 before the first member joins, and members have no offset reset. librdkafka 2.16 uses
`auto.offset.reset` when its assignment changes while it gets UNSTABLE_OFFSET_COMMIT (members of KIP-848, or cooperative
ones; with a real Kafka as well): with "earliest" it copies from the beginning again, with "error" it gives up.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from barnabas.client.types import GroupProtocol
from tests.support.processes.copiers import FATAL, Job

CHANGE_SECONDS = 0.2
SESSION_MS = 1_000
TRANSACTION_MS = 5_000
RECORDS_PER_TRANSACTION = 100
GROUP = "churn"
SLOTS = 8  # transactional ids
MEMBERS_MIN, MEMBERS_MAX = 2, 5
BROKER_SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=100",
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=200",
    "group.consumer.min.session.timeout.ms=100",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
)


def commit_beginning(bootstrap: str, topic: str, partitions: int) -> None:
    """Commits offset 0 of every partition for the group, before it has members."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        consumer.commit(offsets=[TopicPartition(topic, number, 0) for number in range(partitions)], asynchronous=False)
    finally:
        consumer.close()


class Churn:
    """A group's members and their changes.

    Attributes:
        progress: (monotonic seconds, records copied by all members) of each transaction whose commit was answered.
        changes: how many of "joins", "leaves", "kills"; and "gave up", members that ended by themselves.
        aborted: transactions that members aborted and did again.
    """

    def __init__(
        self,
        clients: Sequence[str],
        bootstrap: str,
        source: str,
        target: str,
        folder: Path,
        *,
        protocol: GroupProtocol = "classic",
        seed: int = 0,
    ) -> None:
        self.progress: list[tuple[float, int]] = []
        self.changes: Counter[str] = Counter()
        self.aborted = 0
        self.stderr_path = folder / "members.stderr"
        self._clients = list(clients)
        self._job = Job(
            bootstrap,
            source,
            target,
            GROUP,
            "",
            RECORDS_PER_TRANSACTION,
            protocol=protocol,
            session_ms=SESSION_MS,
            transaction_ms=TRANSACTION_MS,
            offsets_are_there=True,
        )
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._starting: list[str] = []  # transactional ids of copiers whose pid is not known yet
        self._members: dict[int, str] = {}  # by pid
        self._free = [self.transactional_id(number) for number in range(SLOTS)]
        self._leaving: dict[int, None] = {}
        self._over = threading.Event()
        self._no_more_changes = threading.Event()
        with self.stderr_path.open("a") as stderr:
            self._forker = subprocess.Popen(
                [sys.executable, "-m", "tests.support.processes.forked_copiers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._listen, self._change_members)]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def transactional_id(slot: int) -> str:
        return f"{GROUP}-{slot}"

    # -- for CopyRun

    @property
    def copied(self) -> int:
        """Records in transactions whose commit was answered and reported."""
        return self.progress[-1][1] if self.progress else 0

    @property
    def started_count(self) -> int:
        """Members started so far."""
        return self.changes["joins"]

    def log_positions(self) -> None:
        """Every member writes to the log where it is."""
        with self._lock:
            for pid in self._members:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)

    def log(self) -> str:
        return self.stderr_path.read_text() if self.stderr_path.exists() else ""

    def stop_changes(self) -> None:
        """Ends the changes: the present members stay, and a member that gives up is replaced."""
        self._no_more_changes.set()

    def end(self) -> None:
        """Kills all members."""
        self._over.set()
        self._threads[1].join()
        assert self._forker.stdin is not None
        self._forker.stdin.close()
        self._forker.wait(60)
        self._threads[0].join()

    # -- internals

    def _change_members(self) -> None:
        while not self._over.wait(CHANGE_SECONDS):
            with self._lock:
                self._change()

    def _change(self) -> None:
        staying = [pid for pid in self._members if pid not in self._leaving]
        count = len(staying) + len(self._starting)
        if count < MEMBERS_MIN:
            self._join()
        elif not self._no_more_changes.is_set():
            what = self._rng.choice(("join", "join", "leave", "kill"))
            if count == MEMBERS_MAX and what == "join":
                what = self._rng.choice(("leave", "kill"))
            if what == "join" or not staying:
                self._join()
            elif what == "leave":
                self._end_one(self._rng.choice(staying), signal.SIGTERM, "leaves")
            else:
                self._end_one(self._rng.choice(staying), signal.SIGKILL, "kills")

    def _join(self) -> None:
        if not self._free:
            return  # all are in use by members that are leaving
        slot = self._free.pop(self._rng.randrange(len(self._free)))
        job = {**asdict(self._job), "transactional_id": slot}
        client = self._clients[self.started_count % len(self._clients)]
        self._starting.append(slot)
        self.changes["joins"] += 1
        assert self._forker.stdin is not None
        self._forker.stdin.write(json.dumps({"client": client, "job": job}) + "\n")
        self._forker.stdin.flush()

    def _end_one(self, pid: int, number: signal.Signals, what: str) -> None:
        self._leaving[pid] = None
        self.changes[what] += 1
        os.kill(pid, number)  # the pid is free for another process only after its end was reported

    def _listen(self) -> None:
        assert self._forker.stdout is not None
        done: dict[int, tuple[int, int]] = {}
        for line in self._forker.stdout:
            if not line.endswith("}\n"):
                continue
            told: dict[str, Any] = json.loads(line)
            with self._lock:
                if "started" in told:
                    self._members[told["started"]] = self._starting.pop(0)
                    done.pop(told["started"], None)
                elif "ended" in told:
                    self._free.append(self._members.pop(told["ended"]))
                    self._leaving.pop(told["ended"], None)
                    self.changes["gave up"] += told["code"] == FATAL
                else:
                    records, aborted = done.get(told["pid"], (0, 0))
                    done[told["pid"]] = (told["records"], told["aborted"])
                    self.aborted += told["aborted"] - aborted
                    self.progress.append((told["at"], self.copied + told["records"] - records))
