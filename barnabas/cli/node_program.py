"""Program of `barnabas serve`: one node until a stop signal, a fatal error, or the end of its standard input (`--until-stdin-ends`: its parent was killed)."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from barnabas import __version__
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.key import WILDCARDS, shown_address
from barnabas.broker.membership.advertised import loopback_only
from barnabas.broker.node.node import Node
from barnabas.cli.logs import LogOutput
from barnabas.cli.streams import drop_output
from barnabas.errors import BarnabasError
from barnabas.loggers import logger
from barnabas.runtime import descriptors
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.files import FileDisk
from barnabas.runtime.loop import run
from barnabas.runtime.memory import freeze_survivors, keep_freed_memory
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.offload import WorkerThread
from barnabas.runtime.port_owner import described, port_holder
from barnabas.runtime.randomness import SystemRng
from barnabas.runtime.resolver import look_up

log = logger("kafka.server")

STOPS = (signal.SIGTERM, signal.SIGINT)
ORPHAN_STOP_S: Final = 1.5  # the nodes that could take over leaderships stop, too
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def run_node(
    config: BrokerConfig, ignored: Sequence[str], output: LogOutput, *, until_stdin_ends: bool, started: str = ""
) -> int:
    """Logs the remarks about ignored settings, runs the node and returns the exit code of the process.

    `started`: lines to print after the ready line.
    """
    keep_freed_memory()
    freeze_survivors()
    for remark in ignored:
        log.warning("Setting: %s", remark)
    code = run(_serve(config, output, until_stdin_ends, started))
    output.close()
    return code


def obey_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], reload: Callable[[], None] | None) -> None:
    """SIGHUP reloads the TLS stores; a node without TLS stops cleanly, as Kafka does: its terminal may have closed."""
    for number in STOPS:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload or stop)


def _reload_stores(node: Node) -> None:
    """The files of TLS stores may have changed."""
    if node.tls is not None:
        node.slices.start(node.tls.reload(changed_only=False), lambda _: None, node.reactor.fatal)


def announce(lines: str) -> None:
    """Prints lines to standard output. The node continues if that is closed, full, or no longer read."""
    try:
        print(lines, flush=True)
    except OSError as error:
        log.warning("Ready line cannot be written to standard output: error=%s", error.strerror)
        drop_output()


async def _serve(config: BrokerConfig, output: LogOutput, until_stdin_ends: bool, started: str) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    _end_periods(loop, output)
    try:
        if until_stdin_ends:
            _watch_stdin(loop, end)
        if not all(each.host for each in config.advertised_listeners):
            config.host_name = await loop.run_in_executor(None, _host_name)
        node = _node(config, end)
        obey_signals(loop, partial(end, 0), partial(_reload_stores, node) if node.tls is not None else None)
        starting = loop.create_task(node.start())
        ended.add_done_callback(
            lambda _: starting.cancel()
        )  # a node of a cluster may wait for the others without limit
        host, port = await starting
    except asyncio.CancelledError:
        if not ended.done():
            raise
        _ignore_stop_signals()
        return ended.result()
    except (BarnabasError, OSError) as error:
        print(f"barnabas serve: {error}{remedy(error, config)}", file=sys.stderr)
        return 1
    shown = socket.gethostname() if host in WILDCARDS else host
    for each in loopback_only(config):
        log.warning(
            "Clients on other machines cannot use a listener that advertises a loopback address; set advertised.listeners: "
            "listener=%s",
            each,
        )
    log.info("Node serves: node_id=%d host=%s port=%d cluster_id=%s", node.node_id, shown, port, node.cluster_id)
    metrics = "" if node.metrics is None else f" metrics={node.metrics.shown_address}"
    ready = f"ready node={node.node_id} listen={shown_address(shown, port)} pid={os.getpid()}{metrics}"
    announce(f"{ready}\n{started}" if started else ready)
    gc.freeze()  # objects of the start-up live as long as the process: the collector skips them
    code = await ended
    if code == 0:
        try:
            await node.stop()
            log.info("Node has stopped cleanly: node_id=%d", node.node_id)
        except OSError as error:
            log.error("Stop was not clean: error=%s", error)
            code = 1
    _ignore_stop_signals()
    return code


def _host_name() -> str:
    """The name of this machine that clients get if a listener has no host, as in Kafka; 127.0.0.1 if it has no address. Blocks."""
    name = socket.getfqdn()
    try:
        look_up(name)
    except (OSError, UnicodeError):
        return "127.0.0.1"
    return name


def _node(config: BrokerConfig, end: Callable[[int], None]) -> Node:
    """Makes the node over the real clock, disks and network; raises the limit of open files."""
    soft, allowed = descriptors.raise_limit()
    log.info(
        "Node starts: node_id=%d roles=%s version=%s pid=%d directories=%s",
        config.node_id,
        ",".join(sorted(config.roles)),
        __version__,
        os.getpid(),
        ",".join(config.log_dirs),
    )
    log.info("Limit of open files and connections: allowed=%d soft_limit_before=%d", allowed, soft)
    files_max = descriptors.open_files_max(len(config.log_dirs))
    disks = [FileDisk(path, open_files_max=files_max) for path in config.log_dirs]
    return Node(
        config,
        clock=SystemClock(),
        rng=SystemRng(),
        disk=disks[0],
        other_disks=disks[1:],
        offload=WorkerThread(threads=2).run,
        network=AsyncioNetwork(lambda: descriptors.RESERVED + sum(disk.descriptors_wanted for disk in disks)),
        on_fatal=lambda _error: end(1),
    )


def _end_periods(loop: asyncio.AbstractEventLoop, output: LogOutput) -> None:
    """Keeps writing how many lines were suppressed."""
    loop.call_later(output.end_periods(), _end_periods, loop, output)


def _watch_stdin(loop: asyncio.AbstractEventLoop, end: Callable[[int], None]) -> None:
    """Calls `end` when standard input ends. The process then ends within ORPHAN_STOP_S, also if the stop takes longer.

    Raises BarnabasError: standard input is closed or a file, whose end nothing would announce.
    """
    stdin = 0

    def on_input() -> None:
        try:
            if os.read(stdin, 4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # it is gone
        loop.remove_reader(stdin)
        log.warning("Standard input has ended, the node stops")
        end(0)
        loop.call_later(ORPHAN_STOP_S, os._exit, 1)

    try:
        loop.add_reader(stdin, on_input)
    except (OSError, ValueError) as error:
        raise BarnabasError(f"--until-stdin-ends: standard input is no pipe or terminal ({error})") from None


def remedy(error: Exception, config: BrokerConfig) -> str:
    """What to do about an error of the system, as the end of its line; empty if nothing is known."""
    if not isinstance(error, OSError):
        return ""
    if error.errno == errno.EADDRINUSE:
        found = [(each.port, port_holder(each.port)) for each in config.listeners if each.port]
        holders = [f"{described(pid)} listens on port {port}" for port, pid in found if pid is not None]
        return f": {', '.join(holders) or 'another process has it'}; stop it, or choose another port"
    path = str(error.filename or "")
    directory = next((each for each in config.log_dirs if path.startswith(each)), config.log_dirs[0])
    if path and error.errno in FORBIDDEN:
        return (
            f": the node must read and write in {directory}; change its owner or permissions, or name another (--data); "
            f"it runs as user id {os.geteuid()}"
        )
    if error.errno not in FULL:
        return ""
    return f": the volume of {directory} is full; free space on it, or name a directory on another volume (--data)"


def _ignore_stop_signals() -> None:
    """Ignores further stop signals: the node has ended, and its exit code must not change."""
    loop = asyncio.get_running_loop()
    for number in STOPS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
