"""`barnabas up --lab`: a cluster for tests in any language, with the admin port of the test kit (`barnabas.testing`).

Prints one line on stdout once every broker serves: `ready bootstrap=127.0.0.1:9092 lab=http://127.0.0.1:8474`. Each node is a process,
its data are temporary. Exit code 0: stopped by Ctrl-C, SIGTERM or a closed terminal. 1: the cluster could not start, or a node stopped
by itself. 2: the call is wrong.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from barnabas.testing.errors import KitError, KitTimeout

HOSTS = ("127.0.0.1", "localhost")


def lab_port(address: str) -> int:
    """The port of `--lab HOST:PORT`. Raises ValueError unless the host is this machine's own."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"--lab {address}: write HOST:PORT, e.g. --lab 127.0.0.1:8474; port 0 takes a free one")
    if host.lower() not in HOSTS:
        raise ValueError(
            f"--lab {address}: any program that reaches this port can kill brokers and change answers, "
            f"so it listens on this machine only: write 127.0.0.1:{port}"
        )
    return int(port)


class _Stopped(Exception):
    """A signal asks for the end."""


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # the end is on its way
    raise _Stopped


def run_lab(brokers: int, port: int, settings: tuple[str, ...], lab: int) -> int:
    """Runs the cluster until a signal; returns the exit code.

    Args:
        settings: key=value, checked.
        lab: the admin port, 0 for a free one.
    """
    from barnabas.testing import Cluster

    config = {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in settings)}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        cluster = Cluster(brokers, mode="process", config=config, port=port, admin_port=lab)
    except KitError as error:
        print(f"barnabas up: {error}", file=sys.stderr)
        return 2
    try:
        with cluster:
            print(f"ready bootstrap={cluster.bootstrap_servers} lab={cluster.admin_url}", flush=True)
            while True:
                signal.pause()
    except _Stopped:
        return 0
    except (KitError, KitTimeout, OSError) as error:
        print(f"barnabas up: {error}", file=sys.stderr)
        return 1
