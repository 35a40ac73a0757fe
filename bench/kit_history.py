#!/usr/bin/env python3
"""What the test kit's notes cost a broker: CPU of its process, and the time of a round trip, for each Produce request at depth 1.

usage: kit_history.py [--rounds 15]

One broker process of the kit notes nothing ("off"), the last requests of each connection ("last": every test of the pytest plugin),
or everything ("all": `kafka.history`, traces). One connection sends requests of one record of 100 bytes, each after the answer to the
one before. The levels take turns; reported are the medians, and the median of the ratios to "off" within a round.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time

from requests import Served, frame, produce

from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from barnabas.testing import Broker

LEVELS = ("off", "last", "all")
REQUESTS = 3_000


class KitBroker(Served):
    """The connection to a broker process of the kit."""

    def __init__(self, kafka: Broker) -> None:
        self.connection = socket.create_connection((kafka.brokers[0].host, kafka.port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        self.ask(frame(CreateTopicsRequest(topics=[settings], timeout_ms=10_000), 19, 5))


def cpu_ns(pid: int) -> int:
    """CPU of all threads of a process."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def measure(served: KitBroker, pid: int, request: bytes) -> tuple[float, float]:
    """Microseconds of CPU and of time for a request."""
    for _ in range(REQUESTS // 10):
        served.ask(request)
    cpu, begun = cpu_ns(pid), time.perf_counter_ns()
    for _ in range(REQUESTS):
        served.ask(request)
    return (cpu_ns(pid) - cpu) / REQUESTS / 1000, (time.perf_counter_ns() - begun) / REQUESTS / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    request = produce(1, 100)
    with Broker(mode="process") as kafka:
        history, served, pid = kafka.history, KitBroker(kafka), kafka.brokers[0].pid or 0
        spent: dict[str, list[tuple[float, float]]] = {each: [] for each in LEVELS}
        for number in range(rounds):
            for level in LEVELS[:: 1 if number % 2 else -1]:
                kafka.wait(history.set_level(level))
                spent[level].append(measure(served, pid, request))
                history.clear()
    for level, found in spent.items():
        for place, what in enumerate(("CPU", "round trip")):
            ratios = [one[place] / off[place] for one, off in zip(found, spent["off"], strict=True)]
            median = statistics.median(each[place] for each in found)
            print(f"{level:4}  {what:10}  {median:7.1f} us  ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
