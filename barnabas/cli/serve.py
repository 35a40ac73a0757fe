"""`barnabas serve`: one node of a cluster in this process, until SIGTERM or Ctrl-C.

Prints one line on stdout once it serves clients: `ready node=1 listen=127.0.0.1:9092 pid=4711` (a node without the
broker role prints its controller listener). All other output goes to stderr through logging. Exit code 0: a clean stop.
1: a fatal error.
2: the call is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from barnabas.cli.logs import LogFormat, LogLevel, LogOutput
from barnabas.errors import BrokerError

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

_MetricsListen = Annotated[
    str | None,
    Parameter(
        help="HOST:PORT of an HTTP server with /metrics for Prometheus and /livez, /readyz; port 0 takes a free one "
        "[default: metrics.listen of --config, else none]."
    ),
]
_Environment = Annotated[
    bool,
    Parameter(
        help="Read settings from variables too, by the rules of Kafka's container image: KAFKA_NODE_ID is node.id. They "
        "win over --config; --set and other options win over them.",
    ),
]
_UntilStdinEnds = Annotated[
    bool,
    Parameter(
        help="Stop when standard input ends. A program that starts nodes keeps the other end of a pipe; when it ends, "
        "the nodes stop.",
    ),
]


def serve(
    *,
    data: str | None = None,
    node_id: int | None = None,
    listen: str | None = None,
    controller_listen: str | None = None,
    quorum: str | None = None,
    config: Path | None = None,
    environment: _Environment = False,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    strict: bool = False,
    metrics_listen: _MetricsListen = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    until_stdin_ends: _UntilStdinEnds = False,
) -> None:
    """Start one node and serve until SIGTERM: alone, or as one of a cluster.

    Examples:

    `barnabas serve --node-id 1 --listen 127.0.0.1:0 --data ./data --set num.partitions=3 --set flush.messages=1`

    `barnabas serve --data ./data --config server.properties`

    `barnabas serve --node-id 1 --listen 127.0.0.1:9092 --controller-listen 127.0.0.1:19092
    --quorum 1@127.0.0.1:19092,2@127.0.0.1:19093,3@127.0.0.1:19094 --data ./node-1`

    Parameters
    ----------
    data
        The data directory, in Kafka's layout; created if missing. Or several, separated by commas; the first one also
        holds the metadata log [default: log.dirs of --config].
    node_id
        Id of this node in the cluster [default: node.id of --config, else 1].
    listen
        HOST:PORT for clients; port 0 takes a free port [default: listeners of --config, else 127.0.0.1:9092].
    controller_listen
        HOST:PORT for the other nodes' metadata [default: listeners of --config, else this node's address in --quorum].
    quorum
        The voters of the metadata quorum, the same on every node: 1@HOST:PORT,2@HOST:PORT,… with the addresses at
        which the nodes reach each other's controller listeners [default: controller.quorum.voters of --config, else
        this node alone].
    config
        A server.properties file with Kafka's keys.
    set_
        key=value, overrides the file; may be repeated.
    strict
        Refuse to start if a setting is unknown or has no effect here; without it a warning names each such setting.
    log_level
        Least severe level that is logged, to stderr.
    """
    variables = os.environ if environment else None
    if brokers_refused("serve"):
        raise SystemExit(1)
    try:
        broker_config = node_config(
            data, node_id, listen, controller_listen, quorum, config, set_, metrics_listen, variables
        )
        ignored = _ignored_settings(broker_config, strict, variables)
        _make_directory(Path(broker_config.log_dirs[0]))
        output = LogOutput(log_level, log_format)
        output.of_node(broker_config.node_id)
        started = "" if variables is None else _as_kafkas_image(variables, broker_config.node_id, output)
    except (BrokerError, OSError, ValueError) as error:
        print(f"barnabas serve: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    from barnabas.cli.node_program import run_node

    raise SystemExit(run_node(broker_config, ignored, output, until_stdin_ends=until_stdin_ends, started=started))


def brokers_refused(command: str) -> bool:
    """Whether brokers cannot run here, as on Windows, which lacks `os.pread`, `fcntl` and syncs of folders; says so."""
    if hasattr(os, "pread"):
        return False
    print(
        f"barnabas {command}: brokers need Linux or macOS; on Windows run them in WSL or in a container. "
        "The client and the other commands work here.",
        file=sys.stderr,
    )
    return True


def _as_kafkas_image(variables: Mapping[str, str], node_id: int, output: LogOutput) -> str:
    """Sets the levels of loggers. Returns the lines to print when the node serves. Raises ValueError: a level is unknown."""
    from barnabas.cli.kafka_environment import logger_levels, started_lines

    output.set_levels(logger_levels(variables))
    return started_lines(node_id)


def _ignored_settings(config: BrokerConfig, strict: bool, variables: Mapping[str, str] | None) -> list[str]:
    """A remark on each setting that is unknown or has no effect. Raises ValueError if `strict` is set and there is one."""
    from barnabas.broker.controller.core.config_remarks import remarks

    ignored = remarks(config)
    if variables is not None:
        from barnabas.cli.kafka_environment import environment_remarks

        ignored += environment_remarks(variables)
    if strict and ignored:
        raise ValueError(f"{'; '.join(ignored)} (--strict)")
    return ignored


def _make_directory(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        what = "a file" if directory.is_file() else "no directory"
        raise ValueError(f"data directory {directory} is {what}: name a directory")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"data directory {directory} cannot be created ({error.strerror}): name one where this user may write"
        ) from None


def node_config(
    data: str | None,
    node_id: int | None,
    listen: str | None,
    controller_listen: str | None,
    quorum: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    metrics_listen: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Builds the configuration of a node from the arguments of `serve`.

    `variables`: those of Kafka's container image; None: they do not count. Raises BrokerError, ValueError: an argument or a setting is
    wrong; the text names it.
    """
    from barnabas.broker.config.broker_config import CONTROLLER, CONTROLLER_LISTENER, BrokerConfig
    from barnabas.broker.config.key import host_and_port
    from barnabas.broker.node.config_providers import ConfigProviders

    settings = _given_settings(config, assignments, variables)
    providers = ConfigProviders(settings)
    settings = providers.resolve(settings)
    if node_id is not None:
        settings["node.id"] = str(node_id)
    if quorum is not None:
        settings["controller.quorum.voters"] = quorum
    listeners = [each.strip() for each in settings.get("listeners", "").split(",") if each.strip()]
    controller_name = settings.get("controller.listener.names", CONTROLLER_LISTENER).split(",")[0].strip()
    for_controllers = [each for each in listeners if each.upper().startswith(f"{controller_name.upper()}://")]
    for_clients = [each for each in listeners if each not in for_controllers]
    if listen is not None:
        for_clients = [f"PLAINTEXT://{_address('--listen', listen)}"]
    elif not for_clients and settings.get("process.roles", "").strip() != CONTROLLER:
        for_clients = ["PLAINTEXT://127.0.0.1:9092"]
    if controller_listen is not None:
        for_controllers = [f"{controller_name}://{_address('--controller-listen', controller_listen)}"]
    if for_clients or for_controllers:
        settings["listeners"] = ",".join([*for_clients, *for_controllers])
    if metrics_listen is not None:
        wrong = host_and_port(metrics_listen)
        if wrong is not None:
            raise ValueError(f"--metrics-listen {metrics_listen}: {wrong}")
        settings["metrics.listen"] = metrics_listen
    if data is not None:
        settings["log.dirs"] = data
    directories = settings.get("log.dirs", settings.get("log.dir", ""))
    if not directories.strip(" ,"):  # also a variable that a script did not set
        raise ValueError("no data directory: give --data DIR, or log.dirs in --config")
    return BrokerConfig(settings, providers.resolve)


def _given_settings(
    config: Path | None, assignments: tuple[str, ...], variables: Mapping[str, str] | None
) -> dict[str, str]:
    """The settings of the file, of the variables and of --set; the last of equal keys wins."""
    from barnabas.broker.config.properties import parse_properties

    try:
        properties = config.read_text() if config is not None else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"--config {config}: not a text in UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ValueError(f"--config {config}: cannot be read ({error.strerror})") from None
    if variables is None:
        settings = parse_properties(properties)
    else:
        from barnabas.cli.kafka_environment import environment_settings

        settings = environment_settings(variables, properties)
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"--set {assignment}: write key=value, e.g. --set num.partitions=3")
        settings[key.strip()] = value.strip()
    return settings


def _address(flag: str, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if (
        not colon or not port.isdigit() or "//" in host
    ):  # a protocol prefix, as in `listeners`, is not part of a host name
        raise ValueError(f"{flag} {text}: write HOST:PORT, e.g. {flag} 127.0.0.1:9092; the connection is plaintext")
    return f"{host}:{port}"
