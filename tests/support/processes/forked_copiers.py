"""Copiers by the dozen: a process that has imported the clients and forks a copier for each line of JSON it is given.

A fresh interpreter costs a third of a second of CPU, a fork some milliseconds: so members can come several times a second beside
three brokers on two cores. Each child is a process of its own, that can be killed like any other.

Called as `python -m tests.support.processes.forked_copiers`. Reads {"client": …, "job": {fields of copiers.Job}}; prints {"born": pid} for it, what
the child tells, and {"ended": pid, "code": …} (negative: the signal that killed it). At the end of its input it kills all.
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

REAP_SECONDS = 0.02


def bear(line: str) -> int:
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
        os._exit(code)  # not the parent's way out


def reap(alive: dict[int, None]) -> None:
    """Tells of those that have ended."""
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        alive.pop(pid)
        tell(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}), sys.stdout)


def main() -> None:
    """Until the input ends."""
    alive: dict[int, None] = {}
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            if selector.select(REAP_SECONDS):
                data = os.read(0, 65_536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    pid = bear(line.decode())
                    alive[pid] = None
                    tell(json.dumps({"born": pid}), sys.stdout)
            reap(alive)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
