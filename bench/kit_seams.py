#!/usr/bin/env python3
"""What the test kit's network and disk cost a broker while no fault is installed: CPU of its process for each Produce request.

usage: kit_seams.py [--rounds 9]

Two processes run a node of the kit with files on the real disk. The second has the real network and disk, as an ordinary broker. One
connection sends requests of one record of 100 bytes, each after the answer to the one before. The processes take turns; reported are
the medians, and the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from requests import Served, frame, produce

from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest

NODE = """
import asyncio, sys
from barnabas.runtime.files import FileDisk
from barnabas.runtime.loop import run
from barnabas.testing.node_host import NodeHost

async def main(directory, port, variant):
    settings = {
        "node.id": "1", "log.dirs": directory, "listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    host = NodeHost(settings, [FileDisk(directory)], emit=print, on_fatal=print)
    if variant != "kit":
        host.network, host.disks = host.links.real, [each.real for each in host.files]
    await host.start()
    print("ready", flush=True)
    await asyncio.Future()

run(main(*sys.argv[1:]))
"""


class KitNode(Served):
    """A node of the kit in a process."""

    def __init__(self, directory: Path, variant: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(directory), str(port), variant], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        self.ask(frame(CreateTopicsRequest(topics=[settings], timeout_ms=10_000), 19, 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    request = produce(1, 100)
    with tempfile.TemporaryDirectory() as directory:
        nodes = {each: KitNode(Path(directory, each), each) for each in ("kit", "ordinary")}
        try:
            spent: dict[str, list[float]] = {each: [] for each in nodes}
            for number in range(rounds):
                for name in list(nodes)[:: 1 if number % 2 else -1]:
                    spent[name].append(nodes[name].measure(request))
        finally:
            for node in nodes.values():
                node.end()
    for name, found in spent.items():
        ratios = [each / ordinary for each, ordinary in zip(found, spent["ordinary"], strict=True)]
        print(
            f"{name}: {statistics.median(found):.2f} us a request, {statistics.median(ratios):.4f} of an ordinary broker's "
            f"({min(ratios):.4f} to {max(ratios):.4f}) in {rounds} rounds"
        )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
