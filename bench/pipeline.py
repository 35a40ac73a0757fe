"""The pipeline's source and sink beside Spark's own Kafka connector: rows a second, one Spark session, one broker.

usage: pipeline.py [--rows 1000000,3000000] [--rounds 5] [--master local[2]] [--cases source,sink,counted,batches,copies,live]

Records of 100 bytes with a key, 4 partitions. The source is read with all columns into Spark's sink `noop`; the sink writes generated
rows: Spark's connector at least once (it knows nothing else), ours exactly once, by two-phase commit, and at least once too.
The ways take turns within a round, the order alternates, and a first round that warms everything up is not counted. Figures are
medians, ratios medians of the ratios within a round. The case `batches` gives CPU seconds (JVM and Python, without the broker) of a
micro-batch of 100 rows or two a partition, from topics of 1, 10 and 100 partitions into `noop`, beside a Python source that only
returns rows, in one task and in one a partition: the least that PySpark allows. The case `copies` writes the same batches to a second topic
of as many partitions: by Spark's connector at least once, by ours exactly once. `counted` adds up the values' lengths in a batch job, in records a CPU second.
`live` copies LIVE_RATE records a second between topics of 4 partitions with a trigger of 0.2 s: how long a record needs to a
reader of committed records, batches a second, and CPU seconds of a batch. Needs the extra `pipeline`, and Maven for the connector's jars.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

from barnabas.pipeline import session
from barnabas.pipeline.java import java_home
from tests.support.pipeline import topics
from tests.support.pipeline.connector import connector_jars
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 4
VALUE_BYTES = 100
PARTITION_COUNTS = (1, 10, 100)
BATCHES_BEFORE, BATCHES = 3, 15  # before measuring; measured
LIVE_RATE, LIVE_SECONDS_BEFORE, LIVE_SECONDS = 200, 8, 15  # records a second; before measuring; measured
OFFICIAL = "Spark's connector"
Way = Callable[[], None]


def generated(spark: SparkSession, rows: int) -> DataFrame:
    """Rows with a key and a value of 100 bytes."""
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "cast(cast(id as string) as binary) as key",
        f"cast(rpad(cast(id as string), {VALUE_BYTES}, 'x') as binary) as value",
    )


def filled(spark: SparkSession, bootstrap: str, rows: int) -> dict[str, str]:
    """Fills a topic; returns the options of a source that reads it."""
    topic = f"in-{rows}"
    write = generated(spark, rows).write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    write.option("topic", topic).save()
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}


def source_ways(spark: SparkSession, bootstrap: str, rows: int) -> dict[str, Way]:
    """Reads of one topic that is filled first, and checked to hold every row."""
    options = filled(spark, bootstrap, rows)

    def way(name: str) -> Way:
        frame = spark.read.format(name).options(**options).load()
        found = frame.count()
        if found != rows:
            raise SystemExit(f"{name} reads {found} of {rows} rows")
        return lambda: frame.write.format("noop").mode("overwrite").save()

    return {OFFICIAL: way("kafka"), "barnabas": way("barnabas")}


def sink_ways(spark: SparkSession, bootstrap: str, rows: int) -> dict[str, Way]:
    """Writes of the same generated rows, each way to a topic of its own; what the first of each wrote is counted."""
    frame = generated(spark, rows)

    def way(name: str, delivery: str) -> Way:
        topic = f"out-{rows}-{name}-{delivery}"
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}

        def write() -> None:
            chosen = {} if name == "kafka" else {"delivery": delivery}
            if delivery == "exactly_once":
                chosen["sink.id"] = f"bench-{uuid.uuid4().hex}"
            frame.write.format(name).mode("append").options(**options, **chosen).save()

        write()
        read = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        found = read.option("kafka.isolation.level", "read_committed").load().count()
        if found != rows:
            raise SystemExit(f"{name} ({delivery}) has written {found} of {rows} rows")
        return write

    return {
        OFFICIAL: way("kafka", "at_least_once"),
        "barnabas, exactly once": way("barnabas", "exactly_once"),
        "barnabas, at least once": way("barnabas", "at_least_once"),
    }


def measured(ways: dict[str, Way], rounds: int) -> list[dict[str, float]]:
    """Seconds of each way, by round."""
    found = []
    for number in range(rounds + 1):
        one = {}
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            began = time.perf_counter()
            ways[name]()
            one[name] = time.perf_counter() - began
        if number:
            found.append(one)
    return found


def report(case: str, rows: int, found: list[dict[str, float]]) -> None:
    for name in (name for name in found[0] if name != OFFICIAL):
        cells = []
        for one in (OFFICIAL, name):
            rates = sorted(rows / seconds[one] for seconds in found)
            cells.append(f"{median(rates) / 1e3:,.0f}k ({rates[0] / 1e3:,.0f}–{rates[-1] / 1e3:,.0f}k)")
        ratio = median(seconds[OFFICIAL] / seconds[name] for seconds in found)
        print(f"| {case}, {rows:,} rows: {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |", flush=True)


def cpu_ticks(without: int) -> dict[int, int]:
    """CPU time of each process below this one, except `without` and its own time."""
    parents, ticks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    ours = [os.getpid()]
    for each in ours:
        ours += [pid for pid, parent in parents.items() if parent == each and pid != without]
    return {pid: ticks[pid] for pid in ours[1:]}


def last_batch(query: StreamingQuery) -> int:
    """Number of the last batch that has ended; -1 if none has."""
    if (error := query.exception()) is not None:
        raise error
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def batch_cost(
    spark: SparkSession, name: str, options: dict[str, str], output: dict[str, str], checkpoint: str, broker: int
) -> float:
    """CPU seconds of a micro-batch into Spark's sink `noop`, or if there are options for an output, into the sink `name`."""
    frame = spark.readStream.format(name).options(**options).load()
    if output:
        frame = frame.select("key", "value")
    writer = frame.writeStream.format(name if output else "noop").options(**output)
    query = writer.option("checkpointLocation", checkpoint).start()

    def batch(number: int) -> int:
        while (last := last_batch(query)) < number:
            time.sleep(0.05)  # Spark has no event for Python callers; the listener would cost CPU that is measured here
        return last

    first = batch(BATCHES_BEFORE)
    before = cpu_ticks(broker)
    last = batch(first + BATCHES)
    after = cpu_ticks(broker)
    query.stop()
    spent = sum(each - before.get(pid, 0) for pid, each in after.items())
    return spent / os.sysconf("SC_CLK_TCK") / (last - first)


def batches(spark: SparkSession, broker: ServedBroker, scratch: str, rounds: int, copies: bool) -> None:
    """Rows of the case `batches`, or of `copies`."""
    spark.dataSource.register(trivial_source())
    columns = (
        [OFFICIAL, "barnabas"] if copies else [OFFICIAL, "barnabas", "trivial, 1 task", "trivial, a task a partition"]
    )
    print(f"| CPU s a micro-batch: median (lowest–highest) | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|", flush=True)
    for partitions in PARTITION_COUNTS:
        topic = topics.new_topic(broker.address, partitions)
        for partition in range(partitions):
            topics.send(
                broker.address, topic, [b"x" * VALUE_BYTES] * max(200, 20_000 // partitions), partition=partition
            )
        address = {"kafka.bootstrap.servers": broker.address}
        read = {**address, "subscribe": topic, "startingOffsets": "earliest"}
        read["maxOffsetsPerTrigger"] = str(max(100, 2 * partitions))
        output = {**address, "topic": topics.new_topic(broker.address, partitions)} if copies else {}
        ways = {
            OFFICIAL: ("kafka", read),
            "barnabas": ("barnabas", read),
            "trivial, 1 task": ("trivial", {"tasks": "1"}),
            "trivial, a task a partition": ("trivial", {"tasks": str(partitions)}),
        }
        found: dict[str, list[float]] = {name: [] for name in columns}
        for number in range(rounds + 1):
            for name in columns if number % 2 == 0 else columns[::-1]:
                checkpoint = f"{scratch}/{topic}-{name}-{number}"
                cost = batch_cost(spark, *ways[name], output, checkpoint, broker.process.pid if broker.process else 0)
                if number:
                    found[name].append(cost)
        cells = [f"{median(costs):.2f} ({min(costs):.2f}–{max(costs):.2f})" for costs in found.values()]
        print(f"| {partitions} partitions | {' | '.join(cells)} |", flush=True)


def counted(spark: SparkSession, broker: ServedBroker, rows: int, rounds: int) -> None:
    """Row of the case `counted`."""
    found: dict[str, list[float]] = {}
    pid = broker.process.pid if broker.process else 0

    def measuring(name: str, options: dict[str, str]) -> Way:
        def way() -> None:
            before = cpu_ticks(pid)
            # a frame of its own: Spark keeps what a frame has shuffled
            spark.read.format(name).options(**options).load().selectExpr("sum(length(value))").collect()
            spent = sum(each - before.get(one, 0) for one, each in cpu_ticks(pid).items())
            found.setdefault(name, []).append(rows * os.sysconf("SC_CLK_TCK") / spent)

        return way

    options = filled(spark, broker.address, rows)
    measured({OFFICIAL: measuring("kafka", options), "barnabas": measuring("barnabas", options)}, rounds)
    for name, rates in found.items():
        kept = sorted(rates[1:])
        print(
            f"| counted, {rows:,} rows a CPU s: {name} | {median(kept):,.0f} ({kept[0]:,.0f}–{kept[-1]:,.0f}) |",
            flush=True,
        )


def live(spark: SparkSession, broker: ServedBroker, scratch: str, rounds: int) -> None:
    """Rows of the case `live`."""
    print("| live | median and p95 of a record's seconds | batches/s | CPU s a batch |\n|---|---|---|---|")
    found: dict[str, list[list[float]]] = {OFFICIAL: [], "barnabas": []}
    for number in range(rounds + 1):
        for name in list(found) if number % 2 == 0 else list(found)[::-1]:
            one = live_round(spark, broker, "kafka" if name == OFFICIAL else name, f"{scratch}/live-{name}-{number}")
            if number:
                found[name].append(one)
    for name, rows in found.items():
        half, late, rate, cost = (median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {half:.2f} / {late:.2f} | {rate:.2f} | {cost:.2f} |", flush=True)


def live_round(spark: SparkSession, broker: ServedBroker, name: str, checkpoint: str) -> list[float]:
    address = {"kafka.bootstrap.servers": broker.address}
    origin, copy = (topics.new_topic(broker.address, PARTITIONS) for _ in range(2))
    frame = spark.readStream.format(name).options(**address, subscribe=origin).load().select("key", "value")
    writer = frame.writeStream.format(name).options(**address, topic=copy, checkpointLocation=checkpoint)
    query = writer.trigger(processingTime="200 milliseconds").start()
    pid = broker.process.pid if broker.process else 0
    load = subprocess.Popen(
        [sys.executable, __file__, "--load", broker.address, origin, copy], stdout=subprocess.PIPE, text=True
    )
    assert load.stdout is not None
    load.stdout.readline()  # it measures from here on
    began, before = last_batch(query), cpu_ticks(pid)
    latencies = [float(each) for each in load.stdout.readline().split()]
    ended, after = last_batch(query), cpu_ticks(pid)
    load.wait()
    query.stop()
    spent = sum(each - before.get(one, 0) for one, each in after.items() if one != load.pid)
    batches_done = ended - began
    cost = spent / os.sysconf("SC_CLK_TCK") / batches_done
    return [median(latencies), latencies[int(len(latencies) * 0.95)], batches_done / LIVE_SECONDS, cost]


def live_load(bootstrap: str, origin: str, copy: str) -> None:
    """Sends the time of day to one topic and reads it from the other; prints a line when it begins to measure, then all seconds."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "live", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(copy, number, 0) for number in range(PARTITIONS)])
    began = time.time()
    measures_from, ends = began + LIVE_SECONDS_BEFORE, began + LIVE_SECONDS_BEFORE + LIVE_SECONDS
    sent, latencies = 0, []
    measuring = False
    while (now := time.time()) < ends:
        if not measuring and now >= measures_from:
            measuring = True
            print("measuring", flush=True)
        while sent < (now - began) * LIVE_RATE:
            producer.produce(origin, repr(time.time()).encode(), partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
        message = consumer.poll(0.002)
        while message is not None and message.error() is None:
            sent_at = float(message.value() or b"0")
            if sent_at >= measures_from:
                latencies.append(time.time() - sent_at)
            message = consumer.poll(0)
    producer.flush()
    consumer.close()
    print(*sorted(latencies), flush=True)


def trivial_source() -> type[DataSource]:
    """A source that returns ten rows a task; defined here, because Spark sends local classes to its workers."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def __init__(self, tasks: int) -> None:
            self.tasks = tasks

        def initialOffset(self) -> dict[str, int]:
            return {"batch": 0}

        def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
            return {"batch": start["batch"] + 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(task) for task in range(self.tasks)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"number": pa.array(range(10), pa.int64())})

    class Trivial(DataSource):
        @classmethod
        def name(cls) -> str:
            return "trivial"

        def schema(self) -> str:
            return "number long"

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return Reader(int(self.options["tasks"]))

    return Trivial


def main(rows: list[int], rounds: int, master: str, cases: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        spark = session(
            "barnabas-bench",
            master=master,
            jars=connector_jars(Path(scratch), java_home() / "bin" / "java"),
            spark__sql__warehouse__dir=f"{scratch}/warehouse",
        )
        for case in ("batches", "copies", "live", "counted"):
            if case in cases:
                settings = (f"num.partitions={PARTITIONS}", "transaction.two.phase.commit.enable=true")
                broker = ServedBroker(Path(scratch) / case, *settings).start()
                try:
                    if case == "live":
                        live(spark, broker, scratch, rounds)
                    elif case == "counted":
                        counted(spark, broker, rows[0], rounds)
                    else:
                        batches(spark, broker, scratch, rounds, case == "copies")
                finally:
                    broker.stop()
        if {"source", "sink"} & {*cases}:
            print("| rows/s: median (lowest–highest) | Spark's connector | barnabas | ratio |\n|---|---|---|---|")
        for count in rows:
            for case, ways in (("source", source_ways), ("sink", sink_ways)):
                if case in cases:
                    settings = (f"num.partitions={PARTITIONS}", "transaction.two.phase.commit.enable=true")
                    broker = ServedBroker(Path(scratch) / f"{case}-{count}", *settings).start()
                    try:
                        report(case, count, measured(ways(spark, broker.address, count), rounds))
                    finally:
                        broker.stop()
        spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000000,3000000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--cases", default="source,sink")
    parser.add_argument(
        "--load", nargs=3, metavar=("BOOTSTRAP", "FROM", "TO"), help="the client of the case `live`, in a process"
    )
    arguments = parser.parse_args()
    if arguments.load:
        live_load(*arguments.load)
    else:
        counts = [int(count) for count in arguments.rows.split(",")]
        main(counts, arguments.rounds, arguments.master, arguments.cases.split(","))
