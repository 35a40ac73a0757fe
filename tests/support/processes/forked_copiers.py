"""Starts many copiers: a process that has imported the clients forks a copier for each line of JSON on its input.

A new interpreter takes a third of a second of CPU time, a fork takes milliseconds. So several members a second can join
beside three brokers on two cores. Each copier is a process of its own and can be killed like any other.

Called as `python -m tests.support.processes.forked_copiers`. Reads {"client": …, "job": {fields of copiers.Job}}.
Prints {"started": pid}, the lines of the copier, and {"ended": pid, "code": …} (negative: the signal that killed it).
Kills all copiers at the end of its input.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys

import confluent_kafka  # noqa: F401 -- imported once here instead of in every child; no thread runs before a client is made

import barnabas.client  # noqa: F401 -- the same
from tests.support.processes.copiers import Job, copy, tell

POLL_SECONDS = 0.02


def fork_copier(line: str) -> int:
    """Forks a copier; returns its pid."""
    order = json.loads(line)
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = copy(order["client"], Job(**order["job"]))
    finally:
        sys.stderr.flush()
        os._exit(code)  # without the parent's exit handlers


def report_ended(alive: dict[int, None]) -> None:
    """Prints each copier that has ended, and forgets it."""
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        alive.pop(pid)
        tell(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}), sys.stdout)


def main() -> None:
    """Runs until the input ends."""
    alive: dict[int, None] = {}
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            if selector.select(POLL_SECONDS):
                data = os.read(0, 65_536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    pid = fork_copier(line.decode())
                    alive[pid] = None
                    tell(json.dumps({"started": pid}), sys.stdout)
            report_ended(alive)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
