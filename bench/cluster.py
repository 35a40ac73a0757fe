#!/usr/bin/env python3
"""Three Barnabas brokers beside three of a real Apache Kafka 4.3.1: replication 3, min ISR 2, the same librdkafka load in one run.

usage: cluster.py [--pairs 3] [--only latency,txn,…] [--scale 0.3] [--kills 3] [--starts 3] [--out results.json] [--barnabas-only]

Both clusters run at once, each idle while the other is measured; the order alternates from pair to pair. Barnabas runs as it
is installed: its modules compiled to byte code, which a pip install does. After the load come the kills: SIGKILL of a partition's leader, of a transaction coordinator, of the controller, with Kafka's default time-outs;
reported is the longest time without an acknowledgement that librdkafka saw, and the time until the metadata name another
leader. Needs Java 17 and Maven (tests/oracle/kafka-up brings Kafka from Maven Central), 3 GB of memory.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # nodes inherit it

from confluent_kafka import KafkaException, Producer  # noqa: E402  # after the path

from tests.support.processes.cluster import Cluster, barnabas_nodes, kafka_nodes  # noqa: E402  # as above

CASES = "latency,txn,txn16,bulk,partitions"
QUICK = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}
AFTER_KILL_SECONDS = 20.0
GOALS = {
    ("latency_acks_all", "p50_ms"): "0.7",
    ("latency_acks_all", "p99_ms"): "3",
    ("txn_sequential", "txn_s"): "200",
    ("txn_16_producers", "txn_s"): "600",
    ("produce_1000B", "mb_s"): "100",
    ("produce_1000B", "cpu_s_per_gb"): "8",
    ("produce_100_partitions", "krec_s"): "80",
    ("create_1000_partitions_answered", "wall_s"): "0.3",
    ("create_1000_partitions_writable", "wall_s"): "2",
    ("start", "listed_s"): "1",
    ("start", "rss_idle_mb"): "180",
    ("kill leader", "gap_s"): "3",
    ("kill leader", "new_leader_s"): "1",
    ("kill coordinator", "gap_s"): "3",
    ("kill coordinator", "new_leader_s"): "1",
    ("kill controller", "gap_s"): "3",
    ("kill controller", "new_leader_s"): "1",
}

Samples = dict[str, dict[str, dict[str, list[float]]]]  # case, figure, name of the cluster


def rss_mb(cluster: Cluster) -> float:
    """Resident memory of all nodes together."""
    pages = sum(int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) for node in cluster.nodes.values())
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def load(name: str, cluster: Cluster, only: str, scale: float, *extra: str) -> list[dict[str, Any]]:
    """One process of kbench.py against the cluster; its rows."""
    pids = ",".join(str(node.pid) for node in cluster.nodes.values())
    command = [sys.executable, str(HERE / "kbench.py"), name, cluster.bootstrap, "--pids", pids, "--only", only]
    command += ["--rf", "3", "--sizes", "1000", "--scale", str(scale), *extra]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def derived(row: dict[str, Any]) -> dict[str, float]:
    """The figures of one row that are compared, units in the names."""
    cpu, case = row["broker_cpu_s"], row["case"]
    figures: dict[str, float] = {"wall_s": row["wall_s"]}
    for key in ("p50_ms", "p99_ms", "txn_s", "mb_s", "krec_s"):
        if key in row:
            figures[key] = row[key]
    if case.startswith(("produce_", "consume_")) and row.get("mb_s"):
        figures["cpu_s_per_gb"] = cpu / (row["mb_s"] * row["wall_s"]) * 1000
    elif row.get("n"):
        figures["cpu_us_each"] = cpu / row["n"] * 1e6
    return figures


class Pulse:
    """Acknowledgements of a loop in a thread, and the longest time without one."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.times: list[float] = []
        self._beat = beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._beat()
            self.times.append(time.monotonic())

    def end(self, since: float) -> float:
        """Stops; the longest gap that ends after `since`, in seconds."""
        self._over.set()
        self._thread.join(AFTER_KILL_SECONDS)
        times = [*self.times, time.monotonic()] if self._thread.is_alive() else self.times
        return max(b - a for a, b in pairwise(times) if b > since)


def produce_beat(cluster: Cluster, topic: str) -> Callable[[], None]:
    """A record at depth 1, idempotent, acks=all."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "enable.idempotence": True, **QUICK})

    def beat() -> None:
        answered: list[Any] = []
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=lambda error, _: answered.append(error))
        while not answered:
            producer.poll(0.1)

    return beat


def transaction_beat(cluster: Cluster, topic: str, name: str) -> Callable[[], None]:
    """A transaction of three records on three partitions; an aborted one is done again."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0, **QUICK})
    producer.init_transactions(60)

    def patiently(call: Callable[[float], None]) -> None:
        while True:
            try:
                return call(30)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def beat() -> None:
        while True:
            try:
                producer.begin_transaction()
                for partition in range(3):
                    producer.produce(topic, b"x" * 100, partition=partition)
                patiently(producer.commit_transaction)
                return
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                patiently(producer.abort_transaction)

    return beat


def kill(cluster: Cluster, whom: str) -> dict[str, float]:
    """Kills who plays that part, under load; starts it again."""
    topic = "k" + uuid.uuid4().hex[:10]
    name = "t" + uuid.uuid4().hex[:10]
    cluster.create_topic(topic, 3)
    beats = [produce_beat(cluster, topic), transaction_beat(cluster, topic, name)]
    victim = {
        "leader": lambda: cluster.leader(topic, 0),
        "coordinator": lambda: cluster.coordinator(name),
        "controller": cluster.controller,
    }[whom]()
    led = [part.partition_index for part in cluster.partitions(topic) if part.leader_id == victim]
    pulses = [Pulse(beat) for beat in beats]
    time.sleep(2)  # both pulses beat evenly before the kill
    killed_at = time.monotonic()
    cluster.kill(victim)

    def moved() -> bool:
        return all(cluster.partitions(topic)[number].leader_id not in (-1, victim) for number in led)

    while True:
        try:
            if moved():
                break
        except (OSError, IndexError):
            pass
        time.sleep(0.005)
    figures = {"new_leader_s": time.monotonic() - killed_at} if led else {}
    while any(pulse.times[-1] < killed_at + 1 for pulse in pulses) and time.monotonic() < killed_at + 60:
        time.sleep(0.1)
    time.sleep(3)  # gaps that the return to normal brings count too
    gaps = [pulse.end(killed_at) for pulse in pulses]
    figures |= {"gap_s": max(gaps), "gap_produce_s": gaps[0], "gap_transaction_s": gaps[1]}
    cluster.start_node(victim)
    cluster.wait_in_sync(topic, "__transaction_state")
    return figures


def add(samples: Samples, name: str, case: str, figures: dict[str, float]) -> None:
    for figure, value in figures.items():
        samples.setdefault(case, {}).setdefault(figure, {}).setdefault(name, []).append(value)


def end(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.kill()


def start_barnabas(folder: Path, samples: Samples) -> Cluster:
    """A new cluster, and how long it took until every broker was listed."""
    nodes = barnabas_nodes(folder, "default.replication.factor=3", "min.insync.replicas=2")
    started = time.monotonic()
    cluster = Cluster(nodes)
    cluster.start()
    add(samples, "barnabas", "start", {"listed_s": time.monotonic() - started})
    return cluster


def measure(args: argparse.Namespace, clusters: dict[str, Cluster], samples: Samples) -> None:
    for name, cluster in clusters.items():
        load(name, cluster, "latency", max(args.scale, 0.1), *(["--warmup"] if name == "kafka" else []))
    for pair in range(args.pairs):
        for case in [each for each in args.only.split(",") if each]:
            order = list(clusters.items())
            for name, cluster in order if pair % 2 == 0 else reversed(order):
                for row in load(name, cluster, case, args.scale):
                    if "error" in row:
                        print(f"pair {pair + 1} {name} {case}: {row['error']}", file=sys.stderr)
                    else:
                        add(samples, name, row["case"], derived(row))
            print(f"pair {pair + 1}/{args.pairs} {case}", file=sys.stderr, flush=True)
    for number in range(args.kills):
        for whom in ("leader", "coordinator", "controller"):
            for name, cluster in clusters.items():
                add(samples, name, f"kill {whom}", kill(cluster, whom))
            print(f"kill {number + 1}/{args.kills} {whom}", file=sys.stderr, flush=True)


def table(results: dict[str, Any]) -> None:
    """Prints a Markdown table: medians (of gaps the longest too), and the median of the ratios within each pair."""
    print(f"{results['machine']}, {results['date']}, {results['pairs']} pairs, {results['kills']} kills of each\n")
    print("| case | figure | Kafka | Barnabas | ratio (median of pairs) | goal |\n|---|---|---|---|---|---|")
    for case, figures in results["samples"].items():
        for figure, by_name in figures.items():
            ours, theirs = by_name.get("barnabas", []), by_name.get("kafka", [])
            ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b]
            ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
            goal = GOALS.get((case, figure), "")
            print(f"| {case} | {figure} | {shown(case, theirs)} | {shown(case, ours)} | {ratio} | {goal} |")


def shown(case: str, values: list[float]) -> str:
    if not values:
        return ""
    if case.startswith("kill"):
        return f"{statistics.median(values):.3g} (max {max(values):.3g})"
    return f"{statistics.median(values):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", default=CASES)
    parser.add_argument("--scale", type=float, default=0.3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--out", default="")
    parser.add_argument("--barnabas-only", action="store_true")
    parser.add_argument("--kafka-only", action="store_true")
    args = parser.parse_args()
    if args.starts < 1:
        parser.error("--starts: at least 1, else there is no Barnabas to measure")

    samples: Samples = {}
    clusters: dict[str, Cluster] = {}
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as scratch:
        try:
            if not args.barnabas_only:
                started = time.monotonic()
                clusters["kafka"] = Cluster(kafka_nodes(Path(scratch) / "kafka")).start()
                add(samples, "kafka", "start", {"listed_s": time.monotonic() - started})
            if not args.kafka_only:
                compileall.compile_dir(HERE.parent / "barnabas", quiet=1)
                for number in range(args.starts):
                    if number:
                        end(clusters.pop("barnabas"))
                    (folder := Path(scratch) / f"barnabas-{number}").mkdir()
                    clusters["barnabas"] = start_barnabas(folder, samples)
            time.sleep(3)  # idle: what starting took is given back
            for name, cluster in clusters.items():
                add(samples, name, "start", {"rss_idle_mb": rss_mb(cluster)})
            measure(args, clusters, samples)
        finally:
            for cluster in clusters.values():
                end(cluster)
            report(args, samples)  # also after an error; before the folders are removed, which may take a minute


def report(args: argparse.Namespace, samples: Samples) -> None:
    results = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
        "pairs": args.pairs,
        "kills": args.kills,
        "samples": samples,
    }
    table(results)
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
