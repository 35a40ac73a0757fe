#!/usr/bin/env python3
"""Two producers, one without measure: what a quota of the one gives the other.

usage: quotas.py [--seconds 20] [--bootstrap HOST:PORT]

The measured client produces records of 1 kB at depth 1. It runs alone, then beside a client that sends requests of 500 kB as fast as it can,
then beside the same client with a quota of 1 MB/s. Printed are its requests a second and the 99th percentile of their times. The quota's
first ten seconds, in which the other client may use what it has saved up, are left out. Without --bootstrap it starts a broker.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from barnabas.protocol.messages.produce import (  # noqa: E402  # after the path
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.protocol.record_codec import NewRecord  # noqa: E402  # as above
from barnabas.protocol.records import build_batch  # noqa: E402  # as above
from tests.support.oracle.quota_requests import alter_quotas, entry  # noqa: E402  # as above
from tests.support.oracle.wire import Wire  # noqa: E402  # as above
from tests.support.processes.served import ServedBroker  # noqa: E402  # as above

TOPICS = ("quotas-measured", "quotas-greedy")
GREEDY = "greedy"
GREEDY_BYTES_A_SECOND = 1_000_000.0
SAVED_UP_S = 11


def request(topic: str, size_bytes: int) -> ProduceRequest:
    """A request of one record."""
    batch = build_batch([NewRecord(None, b"x" * size_bytes, int(time.time() * 1000))])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[data])


def measure(address: str, seconds: float) -> tuple[float, float]:
    """Requests a second, and the 99th percentile in milliseconds."""
    times = []
    one = request(TOPICS[0], 1_000)
    with Wire(address, "measured") as wire:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            wire.call(one, 9)
            times.append(time.perf_counter() - began)
    times.sort()
    return len(times) / seconds, times[len(times) * 99 // 100] * 1000


def produce_greedily(address: str, stopped: threading.Event) -> None:
    """Sends large requests until it is stopped."""
    one = request(TOPICS[1], 500_000)
    with Wire(address, GREEDY) as wire:
        while not stopped.is_set():
            try:
                wire.call(one, 9)
            except OSError:
                return  # the broker has ended while the connection was muted


def run(address: str, seconds: float) -> None:
    """Prints one line for each of the three cases."""
    with Wire(address) as administrator:
        for topic in TOPICS:
            administrator.create_topic(topic)
        alone = measure(address, seconds)
        print(f"{'alone':28s} {alone[0]:8.0f}/s  p99 {alone[1]:6.2f} ms", flush=True)
        for name, limit in (("beside a greedy client", None), ("beside it, 1 MB/s", GREEDY_BYTES_A_SECOND)):
            alter_quotas(entry([("client-id", GREEDY)], ("producer_byte_rate", limit)))(administrator)
            stopped = threading.Event()
            greedy = threading.Thread(target=produce_greedily, args=(address, stopped), daemon=True)
            greedy.start()
            time.sleep(1 if limit is None else SAVED_UP_S)
            rate, p99_ms = measure(address, seconds)
            stopped.set()
            print(f"{name:28s} {rate:8.0f}/s  p99 {p99_ms:6.2f} ms  {rate / alone[0]:5.0%} of its rate", flush=True)
            if limit is None:
                greedy.join()
        alter_quotas(entry([("client-id", GREEDY)], ("producer_byte_rate", None)))(administrator)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--bootstrap")
    arguments = parser.parse_args()
    if arguments.bootstrap is not None:
        run(arguments.bootstrap, arguments.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        broker = ServedBroker(Path(folder) / "data").start()
        run(broker.address, arguments.seconds)
        broker.end()


if __name__ == "__main__":
    main()
