"""`barnabas serve`: one broker in this process until SIGTERM or Ctrl-C.

Prints one line on stdout once clients are served: `ready node=1 listen=127.0.0.1:9092 pid=4711`. Everything else goes to
stderr through logging. A clean stop exits with 0, a node that had to give up with 1, a wrong call with 2.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from barnabas.errors import BarnabasError, BrokerError

if TYPE_CHECKING:
    from barnabas.broker.config import BrokerConfig

__all__ = ["serve"]

log = logging.getLogger("barnabas")

WILDCARDS = ("", "0.0.0.0", "::")


def serve(
    *,
    data: Path,
    node_id: int | None = None,
    listen: str | None = None,
    config: Path | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
) -> None:
    """Start one broker and serve until SIGTERM.

    Examples:

    `barnabas serve --data /tmp/barnabas`

    `barnabas serve --node-id 1 --listen 127.0.0.1:0 --data ./data --set num.partitions=3 --set flush.messages=1`

    `barnabas serve --data ./data --config server.properties`

    Parameters
    ----------
    data
        The data directory, made where it is missing. Kafka's own layout.
    node_id
        Id of this node in the cluster [default: node.id of --config, else 1].
    listen
        HOST:PORT for clients; port 0 takes a free one [default: listeners of --config, else 127.0.0.1:9092].
    config
        A server.properties file with Kafka's keys.
    set_
        key=value above the file; may be repeated.
    log_level
        debug, info, warning or error.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        broker_config = _config(data, node_id, listen, config, set_)
        data.mkdir(parents=True, exist_ok=True)
    except (BrokerError, OSError, ValueError) as error:
        print(f"barnabas serve: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    from barnabas.runtime.loop import run
    from barnabas.runtime.memory import keep_freed_memory

    keep_freed_memory()
    raise SystemExit(run(_serve(broker_config, data)))


def _config(
    data: Path, node_id: int | None, listen: str | None, config: Path | None, assignments: tuple[str, ...]
) -> BrokerConfig:
    from barnabas.broker.config import BrokerConfig, parse_properties

    settings = parse_properties(config.read_text()) if config is not None else {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"--set {assignment}: write key=value, e.g. --set num.partitions=3")
        settings[key.strip()] = value.strip()
    if node_id is not None:
        settings["node.id"] = str(node_id)
    if listen is None and "listeners" not in settings:
        listen = "127.0.0.1:9092"
    if listen is not None:
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"--listen {listen}: write HOST:PORT, e.g. --listen 127.0.0.1:9092")
        settings["listeners"] = f"PLAINTEXT://{host}:{port}"
    settings["log.dirs"] = str(data)
    return BrokerConfig(settings)


async def _serve(config: BrokerConfig, data: Path) -> int:
    from barnabas.broker.node import Node
    from barnabas.runtime.clock import SystemClock
    from barnabas.runtime.files import FileDisk
    from barnabas.runtime.network import AsyncioNetwork
    from barnabas.runtime.randomness import SystemRng

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    try:
        for key in config.unknown_keys:
            log.warning("configuration key %s has no meaning here and is ignored", key)
        node = Node(
            config,
            clock=SystemClock(),
            rng=SystemRng(),
            disk=FileDisk(str(data)),
            network=AsyncioNetwork(),
            on_fatal=lambda _error: end(1),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, 0)
        host, port = await node.start()
    except (BarnabasError, OSError) as error:
        print(f"barnabas serve: {error}", file=sys.stderr)
        return 1
    shown = socket.gethostname() if host in WILDCARDS else host
    print(f"ready node={node.node_id} listen={shown}:{port} pid={os.getpid()}", flush=True)
    gc.freeze()  # what start-up made stays: the collector need not walk it again
    code = await ended
    if code == 0:
        try:
            await node.stop()
        except OSError as error:
            log.error("the stop was not clean: %s", error)
            return 1
    return code
