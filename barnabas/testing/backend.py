"""Backend: what carries the brokers of a cluster. Each mode of the kit is one class of this protocol.

Every coroutine has its own deadline or ends by the deadline of its caller; `abandon` never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol

from barnabas.errors import BrokerError
from barnabas.testing.errors import KitError, NotPossible, broker_names, unknown
from barnabas.testing.extension import Commands
from barnabas.testing.ports import PORT_MAX

Mode = Literal["thread", "process", "remote"]
RunState = Literal["down", "starting", "running", "paused"]
Lose = Literal["nothing", "page_cache"]
MODES: Final[tuple[Mode, ...]] = ("thread", "process")  # those that start brokers
LOSSES: Final[tuple[Lose, ...]] = ("nothing", "page_cache")
BROKERS_MAX: Final = 9  # all run on this machine
LOG_DIRS_MAX: Final = 9  # of each broker
REPLICAS_MAX: Final = 3

# The listener of connections between brokers and of the kit's own client. Clients are given addresses of their own listener only, so
# what arrives here is never a client's.
INTERNAL_LISTENER: Final = "INTERNAL"
_PLAINTEXT: Final = "PLAINTEXT"
_PROTOCOLS: Final = (_PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# Settings that the kit has to choose, with what a test can write instead.
_OWN: Final = {
    **dict.fromkeys(("node.id", "broker.id"), "brokers have the ids 1, 2, …; remove it"),
    **dict.fromkeys(("process.roles", "controller.quorum.voters"), "each broker is a controller, too; remove it"),
    **dict.fromkeys(
        ("listeners", "listener.security.protocol.map", "inter.broker.listener.name"),
        "remove it; security_protocol=… and port=… set the listener for clients",
    ),
    **dict.fromkeys(
        ("log.dirs", "log.dir", "metadata.log.dir"), "remove it; log_dirs=2 gives each broker two log directories"
    ),
}

# Below the settings of the user. A test waits for no further members, and a short test needs few internal partitions.
DEFAULTS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


@dataclass(frozen=True)
class Shape:
    """What a cluster consists of. Two clusters of one shape are interchangeable.

    Attributes:
        brokers: number of brokers; each is a voter, too. Their ids are 1 to `brokers`.
        config: settings of server.properties for every broker, sorted.
        node_config: those of single brokers, by id, in place of or beside those of `config`; sorted.
        port: client port of the first broker; 0 takes free ports.
        security_protocol: of the listener for clients, which has the same name.
        own_security: whether the kit makes certificates and a user for it.
        log_dirs: log directories of each broker.
    """

    brokers: int = 1
    config: tuple[tuple[str, str], ...] = ()
    port: int = 0
    mode: Mode = field(default="thread")
    security_protocol: str = _PLAINTEXT
    own_security: bool = False
    node_config: tuple[tuple[int, tuple[tuple[str, str], ...]], ...] = ()
    log_dirs: int = 1

    @classmethod
    def of(
        cls,
        brokers: int,
        config: Mapping[str, object] | None,
        port: int,
        mode: str,
        security_protocol: str = _PLAINTEXT,
        node_config: Mapping[int, Mapping[str, object]] | None = None,
        log_dirs: int = 1,
    ) -> Shape:
        """Checks the arguments of a cluster. Raises KitError with the correct form."""
        if security_protocol not in _PROTOCOLS:
            raise KitError(unknown("security_protocol", security_protocol, _PROTOCOLS))
        if mode not in MODES:
            raise KitError(unknown("mode", mode, MODES))
        if isinstance(brokers, bool) or not isinstance(brokers, int) or not 1 <= brokers <= BROKERS_MAX:
            raise KitError(f"brokers={brokers!r}: 1 to {BROKERS_MAX} are possible")
        if isinstance(log_dirs, bool) or not isinstance(log_dirs, int) or not 1 <= log_dirs <= LOG_DIRS_MAX:
            raise KitError(
                f"log_dirs={log_dirs!r}: write the number of log directories of each broker, 1 to {LOG_DIRS_MAX}"
            )
        if config is not None and not isinstance(config, Mapping):
            raise KitError(f"config={config!r}: write a dict of Kafka's settings, for example {{'num.partitions': 3}}")
        of_nodes = _of_nodes(node_config, range(1, brokers + 1))
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= PORT_MAX:
            raise KitError(f"port={port!r}: write a port number, 1 to {PORT_MAX}, or 0 for free ports")
        texts = _texts(config or {})
        if texts:
            _check_settings("config", texts)
        for node_id, own in of_nodes.items():
            _check_settings(f"node_config[{node_id}]", own, beside=texts)
        own_security = False
        if security_protocol != _PLAINTEXT:
            from barnabas.testing.secured import broker_settings, is_left_to_the_kit  # most tests need no TLS

            of_any = {name: value for own in (texts, *of_nodes.values()) for name, value in own.items()}
            own_security = is_left_to_the_kit(security_protocol, of_any)
            if own_security:
                texts |= broker_settings(security_protocol)
        return cls(
            brokers,
            tuple(sorted(texts.items())),
            port,
            "thread" if mode == "thread" else "process",
            security_protocol,
            own_security,
            tuple((node_id, tuple(sorted(own.items()))) for node_id, own in sorted(of_nodes.items())),
            log_dirs,
        )

    @property
    def broker_ids(self) -> range:
        """Ids of the brokers."""
        return range(1, self.brokers + 1)

    @property
    def inner_ports(self) -> int:
        """How many ports the brokers need besides those for clients: for the internal listener, and several brokers for the quorum."""
        return 2 * self.brokers if self.brokers > 1 else 1

    def settings(self, node_id: int, host: str, ports: list[int]) -> dict[str, str]:
        """Returns the settings of one node.

        Args:
            ports: a client port of each broker; of several brokers a quorum port of each; an internal port of each.
        """
        replicas = min(REPLICAS_MAX, self.brokers)
        internal = f"{INTERNAL_LISTENER}://{host}:{ports[-self.brokers :][node_id - 1]}"
        clients = self.security_protocol  # also the name of their listener, as in Kafka's defaults
        own = {
            "node.id": str(node_id),
            "listeners": f"{clients}://{host}:{ports[node_id - 1]},{internal}",
            "listener.security.protocol.map": f"{clients}:{clients},{INTERNAL_LISTENER}:PLAINTEXT",
            "inter.broker.listener.name": INTERNAL_LISTENER,
        }
        if self.brokers > 1:
            quorum_ports = ports[self.brokers : 2 * self.brokers]
            own["controller.quorum.voters"] = ",".join(
                f"{each}@{host}:{quorum_ports[each - 1]}" for each in self.broker_ids
            )
            own["listeners"] += f",CONTROLLER://{host}:{quorum_ports[node_id - 1]}"
        given = {**dict(self.config), **dict(dict(self.node_config).get(node_id, ()))}
        if "advertised.listeners" in given:
            own["advertised.listeners"] = f"{given['advertised.listeners']},{internal}"
        return {
            **DEFAULTS,
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(max(1, replicas - 1)),
            **given,
            **own,
        }


def _of_nodes(node_config: Mapping[int, Mapping[str, object]] | None, known: range) -> dict[int, dict[str, str]]:
    """Settings of single brokers as texts. Raises KitError for an unknown broker or another form."""
    form = "write settings by broker id, for example {2: {'broker.rack': 'b'}}"
    if node_config is not None and not isinstance(node_config, Mapping):
        raise KitError(f"node_config={node_config!r}: {form}")
    found = {}
    for node_id, settings in (node_config or {}).items():
        if isinstance(node_id, bool) or not isinstance(node_id, int) or node_id not in known:
            raise KitError(f"node_config: broker {node_id!r} is unknown; this cluster has {broker_names(known)}")
        if not isinstance(settings, Mapping):
            raise KitError(f"node_config[{node_id}]={settings!r}: {form}")
        found[node_id] = _texts(settings)
    return found


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    return {str(name): _text(value) for name, value in settings.items()}


def _check_settings(where: str, texts: dict[str, str], *, beside: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises KitError for a setting that Kafka does not have or that the kit sets, or a value that the setting does not accept.

    Args:
        where: the argument that has the settings.
        beside: settings that the same brokers have too; they are checked already.
    """
    for name, text in texts.items():
        if name in _OWN:
            raise KitError(f"{where}[{name!r}] = {text!r}: the kit sets it itself: {_OWN[name]}")
    from barnabas.broker.controller.core.config_remarks import remarks
    from barnabas.broker.node.config_providers import broker_config

    try:
        parsed = broker_config({**beside, **texts})
    except BrokerError as error:
        raise KitError(f"{where}: {error}") from None
    if parsed.unknown_keys:
        found = [each.replace(" ignored", "") for each in remarks(parsed) if each.startswith("unknown setting ")]
        raise KitError(f"{where}: {'; '.join(found)}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


class BrokerFiles(NamedTuple):
    """The log directories of a broker and the file with its log lines."""

    directories: tuple[Path, ...]
    log: Path


class Backend(Protocol):
    """One cluster's brokers. Broker ids are checked by the caller."""

    mode: Mode
    log_dirs: int  # of each broker
    on_event: Callable[[int, str, Any], None]  # broker id, name, JSON value; called in the kit's thread
    before_start: Callable[[int], Commands]  # broker id → what it runs before its node exists

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every broker, separated by commas."""
        ...

    @property
    def internal_servers(self) -> str:
        """The same for the kit's own client: addresses of the internal listener, if the brokers have one."""
        ...

    @property
    def broker_ids(self) -> list[int]:
        """Ids of all brokers, running or not."""
        ...

    def address(self, broker_id: int) -> tuple[str, int]:
        """Host and port for clients."""
        ...

    def pid(self, broker_id: int) -> int | None:
        """Process id of a running broker; None if it has none here."""
        ...

    def files(self, broker_id: int) -> BrokerFiles:
        """Its files. Raises NotPossible if it has none, or if they are elsewhere."""
        ...

    def state(self, broker_id: int) -> RunState:
        """Whether it runs."""
        ...

    def may_end(self, broker_id: int, allowed: bool = True) -> None:
        """Whether the end of this broker, before its next start, is no failure."""
        ...

    async def settle(self, broker_id: int) -> None:
        """Returns when everything is here that the broker has reported so far."""
        ...

    def failures(self) -> list[str]:
        """A sentence for each broker that has stopped by itself since the last call."""
        ...

    async def start(self) -> None:
        """Starts every broker; returns when all serve. On an error none is left."""
        ...

    async def stop(self) -> None:
        """Ends every broker and releases everything that belongs to the cluster. The data are not kept."""
        ...

    def abandon(self) -> None:
        """Does the same as `stop` without a loop, at the end of the process. Never waits long."""
        ...

    async def start_broker(self, broker_id: int) -> None:
        """Starts a broker that is down, on its data; returns when it serves."""
        ...

    async def stop_broker(self, broker_id: int) -> None:
        """Stops a broker cleanly: it hands its leaderships over."""
        ...

    async def kill_broker(self, broker_id: int, lose: Lose = "nothing") -> None:
        """Ends a broker as SIGKILL does; its written data stay. With "page_cache" only what was synced stays."""
        ...

    async def pause_broker(self, broker_id: int) -> None:
        """Stops a broker as SIGSTOP does."""
        ...

    async def resume_broker(self, broker_id: int) -> None:
        """Continues a paused broker."""
        ...

    async def command(self, broker_id: int, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a command of node_commands.py in the loop of a running broker."""
        ...


def check_loss(mode: Mode, state: RunState, broker_id: int, lose: str) -> None:
    """Raises KitError if a broker in this state cannot lose that."""
    if lose not in LOSSES:
        raise KitError(unknown("loss", lose, LOSSES))
    if lose != "nothing" and (state in ("down", "starting") or (state == "paused" and mode == "process")):
        first = {"down": "restart it", "starting": f"wait_until_ready({broker_id})", "paused": "resume it"}[state]
        raise KitError(f"broker {broker_id} is {state}, and only its process knows what was not synced: {first} first")


def not_possible(what: str, mode: Mode) -> NotPossible:
    """The error for a mode that cannot do something."""
    return NotPossible(
        f"{what} is not possible in mode '{mode}': this Kafka was started elsewhere. "
        f"Modes {' and '.join(repr(each) for each in MODES)} can do it"
    )
