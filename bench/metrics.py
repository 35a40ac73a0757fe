#!/usr/bin/env python3
"""What metrics cost: a produce at depth 1 with and without them, and a scrape of a broker with many partitions.

usage: metrics.py [--rounds 15] [--partitions 10000] [--topics 10] [--groups 200] [--skip-produce] [--stacks MS]

Produce: two brokers of this checkout in turn, one with --metrics-listen; broker CPU for each request (see requests.py), 1 record of 100 B.

Scrape: CPU time of the loop's thread for each scrape, the longest turn of the loop, the time until the answer is read and its size; for
the first scrape, for scrapes while nothing changes, after one batch in every partition, and for packed ones (the thread that packs is
not in the CPU of the loop's thread). With --stacks the broker prints where turns above MS milliseconds of CPU went.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from requests import Served, frame, produce  # noqa: E402  # bench/requests.py

from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest  # noqa: E402  # after the path
from barnabas.protocol.messages.groups import (  # noqa: E402  # as above
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.protocol.messages.produce import (  # noqa: E402  # as above
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.protocol.record_codec import NewRecord  # noqa: E402  # as above
from barnabas.protocol.records import build_batch  # noqa: E402  # as above
from tests.support.processes.watched_broker import (  # noqa: E402  # as above
    STACKS_VARIABLE,
    VARIABLE,
    LongestTurn,
)

METRICS = ("--metrics-listen", "127.0.0.1:0")
SCRAPES = 9
BATCHES_A_REQUEST = 100


def produce_at_depth_one(rounds: int) -> None:
    request = produce(1, 100)
    found: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        served = {
            "without": Served(HERE.parent, f"{folder}/without"),
            "with": Served(HERE.parent, f"{folder}/with", *METRICS),
        }
        try:
            for number in range(rounds):
                for name in list(served) if number % 2 else reversed(served):
                    found[name].append(served[name].measure(request))
        finally:
            for each in served.values():
                each.end()
    ratios = [one / other for one, other in zip(found["with"], found["without"], strict=True)]
    plain, measured = statistics.median(found["without"]), statistics.median(found["with"])
    print(
        f"produce at depth 1: {plain:.2f} µs without, {measured:.2f} µs with metrics; ratio {statistics.median(ratios):.3f}"
    )


class Scraped:
    """Scrapes of one broker, with what each took."""

    def __init__(self, served: Served, turn: LongestTurn) -> None:
        self._served = served
        self._turn = turn

    def loop_cpu_ms(self) -> float:
        stat = Path(f"/proc/{self._served.process.pid}/task/{self._served.process.pid}/schedstat")
        return int(stat.read_text().split()[0]) / 1e6

    def show(self, name: str, times: int, *, packed: bool = False, before: object = None) -> None:
        rows = []
        for _ in range(times):
            if callable(before):
                before()
                time.sleep(0.3)  # what follows the writes has ended
            self._turn.seconds = 0.0
            cpu_ms, began_s = self.loop_cpu_ms(), time.monotonic()
            head = {"Accept-Encoding": "gzip"} if packed else {}
            request = urllib.request.Request(f"http://{self._served.metrics}/metrics", headers=head)
            with urllib.request.urlopen(request) as answer:
                body = answer.read()
            took_ms = (time.monotonic() - began_s) * 1000
            time.sleep(0.05)  # the watch has seen the last turn
            rows.append((self.loop_cpu_ms() - cpu_ms, self._turn.seconds * 1000, took_ms, len(body)))
        cpu, turn, took, size = (statistics.median(column) for column in zip(*rows, strict=True))
        worst = max(row[1] for row in rows)
        lines = (gzip.decompress(body) if packed else body).count(b"\n")
        print(
            f"| {name} | {cpu:.1f} ms | {turn:.1f} ms, at most {worst:.1f} | {took:.0f} ms | {size / 1000:.0f} kB | {lines} |",
            flush=True,
        )


def scrapes(partitions: int, topics: int, groups: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "turn")
        with LongestTurn(path) as turn:
            os.environ[VARIABLE] = str(path)
            served = Served(HERE.parent, f"{folder}/data", *METRICS, module="tests.support.processes.watched_broker")
            try:
                each = partitions // topics
                for number in range(topics):
                    settings = CreatableTopic(name=f"topic-{number}", num_partitions=each, replication_factor=1)
                    served.ask(frame(CreateTopicsRequest(topics=[settings], timeout_ms=60_000), 19, 5))
                commit(served, groups, topics, each)
                wait_until_quiet(served)
                scraped = Scraped(served, turn)
                print(
                    f"{partitions} partitions, {topics} topics, {groups} groups that have committed {partitions} offsets\n"
                )
                print(
                    "| scrape | CPU of the loop's thread | longest turn | answer | size | lines |\n|---|---|---|---|---|---|"
                )
                scraped.show("the first", 1)
                scraped.show("nothing has changed", SCRAPES)
                scraped.show("nothing has changed, packed", SCRAPES, packed=True)
                for packed in (False, True):
                    how = ", packed" if packed else ""
                    for count, name in (
                        (max(1, topics // 10), "a tenth of the partitions"),
                        (topics, "every partition"),
                    ):
                        written = partial(write, served, count, each)
                        scraped.show(f"{name} written{how}", SCRAPES, packed=packed, before=written)
            finally:
                served.end()


def commit(served: Served, groups: int, topics: int, partitions: int) -> None:
    """Commits one offset of every partition, in equal shares of the groups."""
    if not groups:
        return
    served.ask(frame(FindCoordinatorRequest(key="group-0"), 10, 3))
    keys = [(topic, number) for topic in range(topics) for number in range(partitions)]
    share = max(1, len(keys) // groups)
    for group in range(groups):
        topics_of: dict[int, OffsetCommitRequestTopic] = {}
        for topic, number in keys[group * share : (group + 1) * share]:
            one = topics_of.setdefault(topic, OffsetCommitRequestTopic(name=f"topic-{topic}", partitions=[]))
            one.partitions.append(OffsetCommitRequestPartition(partition_index=number, committed_offset=0))
        request = OffsetCommitRequest(group_id=f"group-{group}", topics=list(topics_of.values()))
        served.ask(frame(request, 8, 7))


def wait_until_quiet(served: Served) -> None:
    """Waits until the broker has opened its partitions: until it needs less than a tenth of a core."""
    while True:
        before = served.cpu_ns()
        time.sleep(1.0)
        if served.cpu_ns() - before < 100_000_000:
            return


def write(served: Served, topics: int, partitions: int) -> None:
    """One record to each partition of the first topics."""
    batch = bytes(build_batch([NewRecord(None, b"x", int(time.time() * 1000))]))
    for number in range(topics):
        for first in range(0, partitions, BATCHES_A_REQUEST):
            data = [
                PartitionProduceData(index=at, records=batch)
                for at in range(first, min(first + BATCHES_A_REQUEST, partitions))
            ]
            topic = TopicProduceData(name=f"topic-{number}", partition_data=data)
            served.ask(frame(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), 0, 9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--skip-produce", action="store_true")
    parser.add_argument("--stacks", type=float, default=0.0)
    arguments = parser.parse_args()
    os.environ[STACKS_VARIABLE] = str(arguments.stacks)
    if not arguments.skip_produce:
        produce_at_depth_one(arguments.rounds)
    scrapes(arguments.partitions, arguments.topics, arguments.groups)


if __name__ == "__main__":
    main()
