"""Python clients side by side: records a second and CPU a record, one partition, one broker, as a table for docs/benchmarks.md.

usage: clients.py [--bootstrap HOST:PORT] [--records 300000] [--sizes 100,1000] [--rounds 5] [--only plain,compiled,aiokafka,…]

Starts a broker of its own unless one is named, and compiles the bundled client in a temporary directory (needs a C compiler). Each
client runs in a process of its own, produces to a topic of its own and then reads it, the first record of each before the clock
starts (it finds broker, topic and producer id, which is a matter of timers with some); the order alternates from round to
round. Figures are medians, ratios medians of the ratios to aiokafka within a round; CPU is the client process's, user and system.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
LARGE_RECORDS = 3  # records above 500 bytes: this part of the number
Figures = tuple[float, float]  # seconds, CPU seconds


async def timed(work: Awaitable[None]) -> Figures:
    wall, cpu = time.perf_counter(), time.process_time()
    await work
    return time.perf_counter() - wall, time.process_time() - cpu


async def bundled(bootstrap: str, topic: str, records: int, size: int) -> tuple[Figures, Figures]:
    from barnabas.client import Consumer, Producer, TopicPartition

    value = b"x" * size
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, value)

        async def produce() -> None:
            for _ in range(records):
                await producer.send(topic, value)
            await producer.flush()

        produced = await timed(produce())
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        await consumer.getone()

        async def consume() -> None:
            left = records
            while left > 0:
                for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                    left -= len(batch)

        return produced, await timed(consume())


async def aiokafka(
    bootstrap: str, topic: str, records: int, size: int, max_batch_size: int = 16_384
) -> tuple[Figures, Figures]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    value = b"x" * size
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=max_batch_size
    ) as producer:
        await producer.send_and_wait(topic, value)

        async def produce() -> None:
            for _ in range(records):
                await producer.send(topic, value)
            await producer.flush()

        produced = await timed(produce())
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    consumer.assign([TopicPartition(topic, 0)])
    await consumer.start()
    consumer.seek(TopicPartition(topic, 0), 0)
    await consumer.getone()

    async def consume() -> None:
        left = records
        while left > 0:
            for batch in (await consumer.getmany(timeout_ms=1_000)).values():
                left -= len(batch)

    consumed = await timed(consume())
    await consumer.stop()
    return produced, consumed


async def aiokafka_64k(bootstrap: str, topic: str, records: int, size: int) -> tuple[Figures, Figures]:
    return await aiokafka(bootstrap, topic, records, size, 65_536)


async def confluent(bootstrap: str, topic: str, records: int, size: int) -> tuple[Figures, Figures]:
    from confluent_kafka import Consumer, Producer, TopicPartition

    value = b"x" * size
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "queue.buffering.max.messages": 2_000_000}
    )

    producer.produce(topic, value)
    producer.flush()

    async def produce() -> None:
        for i in range(records):
            producer.produce(topic, value)
            if not i & 1023:
                producer.poll(0)
        producer.flush()

    produced = await timed(produce())
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,  # default 1000: it pauses that long whenever 100,000 records wait to be taken
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.consume(1, 10.0)

    async def consume() -> None:
        left = records
        while left > 0:
            left -= len(consumer.consume(10_000, 1.0))

    consumed = await timed(consume())
    consumer.close()
    return produced, consumed


CLIENTS: dict[str, tuple[str, Callable[[str, str, int, int], Awaitable[tuple[Figures, Figures]]]]] = {
    "plain": ("bundled, plain Python", bundled),
    "compiled": ("bundled, compiled", bundled),
    "aiokafka": ("aiokafka", aiokafka),
    "aiokafka-64k": ("aiokafka, batches of 64 KiB as ours", aiokafka_64k),
    "confluent": ("confluent-kafka", confluent),
}


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """A broker of this checkout; its address."""
    command = [sys.executable, "-m", "barnabas.cli.main", "serve", "--data", str(directory), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = process.stdout.readline() if process.stdout else ""
            yield ready.split("listen=")[1].split()[0]
        finally:
            process.terminate()


def compiled_tree(directory: Path) -> Path:
    """A copy of the package with its hot loops compiled."""
    shutil.copytree(ROOT / "barnabas", directory / "barnabas", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, directory)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "."]
    done = subprocess.run(build, cwd=directory, capture_output=True, text=True, check=True)
    if not list(directory.glob("barnabas/protocol/record_codec*.so")):
        raise SystemExit(f"cannot compile: {done.stderr}")
    return directory


def run_client(name: str, tree: Path, bootstrap: str, records: int, size: int) -> list[Figures]:
    """One client in a process of its own, with the bundled one as it lies in `tree`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--bootstrap", bootstrap, "--client", name]
    command += ["--records", str(records), "--sizes", str(size)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, check=True)
    figures: list[Figures] = json.loads(done.stdout.splitlines()[-1])
    return figures


def table(size: int, records: int, rounds: list[dict[str, list[Figures]]]) -> None:
    print(f"\n| {size} B records | produced /s | × aiokafka | CPU each | consumed /s | × aiokafka | CPU each |")
    print("|---|---|---|---|---|---|---|")
    for name in rounds[0]:
        cells = []
        for way in (0, 1):
            rate = median(records / one[name][way][0] for one in rounds)
            cpu = median(one[name][way][1] for one in rounds) / records * 1e6
            ratio = ""
            if "aiokafka" in rounds[0]:
                ratio = f"{median(one['aiokafka'][way][0] / one[name][way][0] for one in rounds):.2f}"
            cells += [f"{round(rate, -3):,.0f}", ratio, f"{cpu:.2f} µs"]
        print(f"| {CLIENTS[name][0]} | {' | '.join(cells)} |", flush=True)


def main(bootstrap: str | None, records: int, sizes: list[int], names: list[str], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        trees = dict.fromkeys(names, ROOT)
        if "compiled" in trees:
            (Path(scratch) / "compiled").mkdir()
            trees["compiled"] = compiled_tree(Path(scratch) / "compiled")
        for size in sizes:
            count = records // LARGE_RECORDS if size > 500 else records
            found = []
            for number in range(rounds):
                order = names if number % 2 == 0 else names[::-1]
                with broker(Path(scratch) / f"data-{size}-{number}") if bootstrap is None else _named(bootstrap) as at:
                    one = {name: run_client(name, trees[name], at, count, size) for name in order}
                found.append({name: one[name] for name in names})
            table(size, count, found)


@contextmanager
def _named(bootstrap: str) -> Iterator[str]:
    yield bootstrap


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--only", default=",".join(CLIENTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", help=argparse.SUPPRESS)  # what one process of the benchmark runs
    arguments = parser.parse_args()
    every = [int(size) for size in arguments.sizes.split(",")]
    if arguments.client:
        from barnabas.runtime.loop import run

        work = CLIENTS[arguments.client][1](arguments.bootstrap, uuid.uuid4().hex, arguments.records, every[0])
        print(json.dumps(run(work)))  # type: ignore[arg-type]  # coroutines, all of them
    else:
        main(arguments.bootstrap, arguments.records, every, arguments.only.split(","), arguments.rounds)
