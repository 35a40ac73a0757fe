"""Ports for brokers of tests; each is given out once."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _LAST = 21_000, 32_000  # below those that the kernel gives to outgoing connections
_SHARE = 1_000  # of a worker of pytest-xdist: the port of a node that is down looks free to the others
_worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
_PORTS = range(_FIRST, _LAST)[int(_worker) * _SHARE % (_LAST - _FIRST) :][:_SHARE] if _worker else range(_FIRST, _LAST)
_turn = itertools.count(os.getpid() * 7919)  # round and round: what was given is not given again soon


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that no outgoing connection is given meanwhile."""
    found: list[int] = []
    for _ in _PORTS:
        port = _PORTS[next(_turn) % len(_PORTS)]
        if _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(f"fewer than {count} free ports in {_PORTS}")


def free_port_block(count: int) -> int:
    """The first of `count` neighbouring free ports."""
    while True:
        first, *others = free_ports(count)
        if others == list(range(first + 1, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
