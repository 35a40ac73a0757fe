"""Backend: runs the brokers of a cluster; one implementation for each mode of the kit."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from barnabas.errors import BrokerError
from barnabas.testing.errors import KitError, NotPossible, broker_names, unknown
from barnabas.testing.extension import Commands
from barnabas.testing.ports import HOST, PORT_MAX, ReservedPorts

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
    """Shape of a cluster. Clusters of one shape are interchangeable."""

    brokers: int = 1
    config: tuple[tuple[str, str], ...] = ()  # server.properties of every broker, sorted
    port: int = 0  # client port of the first broker; 0 takes free ports
    mode: Mode = field(default="thread")
    security_protocol: str = _PLAINTEXT  # of the client listener, which has the same name
    own_security: bool = False  # the kit makes certificates and a user
    node_config: tuple[tuple[int, tuple[tuple[str, str], ...]], ...] = ()  # by broker id, over `config`; sorted
    log_dirs: int = 1  # of each broker

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
        return range(1, self.brokers + 1)

    @property
    def inner_ports(self) -> int:
        """Ports besides those for clients: the internal listener and, with several brokers, the quorum."""
        return 2 * self.brokers if self.brokers > 1 else 1

    def settings(self, node_id: int, host: str, ports: list[int]) -> dict[str, str]:
        """`ports`: client ports of all brokers, quorum ports if there are several brokers, internal ports."""
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
    """Raises KitError for an unknown broker or another form."""
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
    """Raises KitError for an unknown setting, one that the kit sets, or an invalid value. `where`: the argument; `beside`: checked settings of the same brokers."""
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


class Backend:
    """Brokers of one cluster; callers check broker ids. Each coroutine ends by its own deadline or its caller's; `abandon` never waits.

    What this class does itself holds for a Kafka that was started elsewhere.
    """

    mode: Mode
    log_dirs = 1  # of each broker

    def __init__(self) -> None:
        # broker id, name, JSON value; called in the kit's thread
        self.on_event: Callable[[int, str, Any], None] = lambda broker_id, name, value: None
        # broker id → what it runs before its node exists
        self.before_start: Callable[[int], Commands] = lambda broker_id: ()

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every broker, separated by commas."""
        raise NotImplementedError

    @property
    def internal_servers(self) -> str:
        """Addresses of the internal listener, for the kit's own client."""
        raise NotImplementedError

    @property
    def broker_ids(self) -> list[int]:
        """Running or not."""
        raise NotImplementedError

    def address(self, broker_id: int) -> tuple[str, int]:
        """Host and port for clients."""
        raise NotImplementedError

    async def start(self) -> None:
        """Returns when all brokers serve. On an error none is left."""
        raise NotImplementedError

    def pid(self, broker_id: int) -> int | None:
        """None if it is down or runs in this process."""
        return None

    def files(self, broker_id: int) -> BrokerFiles:
        """Raises NotPossible if it has none here."""
        raise not_possible("the data directory or the log of a broker", self.mode)

    def state(self, broker_id: int) -> RunState:
        return "running"

    def may_end(self, broker_id: int, allowed: bool = True) -> None:
        """Whether an exit before its next start is expected."""

    async def settle(self, broker_id: int) -> None:
        """Returns when everything that the broker has reported is processed."""

    def failures(self) -> list[str]:
        """A sentence for each unexpected exit since the last call."""
        return []

    async def stop(self) -> None:
        """Ends every broker and deletes the data."""
        self.abandon()

    def abandon(self) -> None:
        """Like `stop`, without a loop, at process exit. Never waits long."""

    async def start_broker(self, broker_id: int) -> None:
        """Starts a broker on its data; returns when it serves."""
        raise not_possible("start_broker", self.mode)

    async def stop_broker(self, broker_id: int) -> None:
        """Stops a broker cleanly, after handing over its leaderships."""
        raise not_possible("stop_broker", self.mode)

    async def kill_broker(self, broker_id: int, lose: Lose = "nothing") -> None:
        """Like SIGKILL: written data stay; with "page_cache" only synced data."""
        raise not_possible("kill", self.mode)

    async def pause_broker(self, broker_id: int) -> None:
        """Like SIGSTOP."""
        raise not_possible("pause", self.mode)

    async def resume_broker(self, broker_id: int) -> None:
        raise not_possible("resume", self.mode)

    async def command(self, broker_id: int, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a command of node_commands.py in the event loop of a broker."""
        raise not_possible(f"command '{name}'", self.mode)


def check_loss(mode: Mode, state: RunState, broker_id: int, lose: str) -> None:
    """Raises KitError if a broker in this state cannot lose that."""
    if lose not in LOSSES:
        raise KitError(unknown("loss", lose, LOSSES))
    if lose != "nothing" and (state in ("down", "starting") or (state == "paused" and mode == "process")):
        first = {"down": "restart it", "starting": f"wait_until_ready({broker_id})", "paused": "resume it"}[state]
        raise KitError(f"broker {broker_id} is {state}, and only its process knows what was not synced: {first} first")


def not_possible(what: str, mode: Mode) -> NotPossible:
    return NotPossible(
        f"{what} is not possible in mode '{mode}': this Kafka was started elsewhere. "
        f"Modes {' and '.join(repr(each) for each in MODES)} can do it"
    )


def killed_text(broker_id: int) -> str:
    """Why a broker did not do what it was asked to."""
    return f"a fault of its disk has killed broker {broker_id}, so it did not do this: restart it first"


class LocalBackend(Backend, ABC):
    """The part of `Backend` that is the same for threads and processes. All ports stay reserved until `abandon`, also while a broker is down."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._ports = ReservedPorts(shape.brokers, shape.port)
        self._inner_ports = ReservedPorts(shape.inner_ports)
        self.log_dirs = shape.log_dirs
        self._failures: list[str] = []
        self._brokers: dict[int, Any] = {}  # each mode has its own class; all have `state` and `may_end`
        ports = [*self._ports.numbers, *self._inner_ports.numbers]
        try:
            self._make_brokers({each: shape.settings(each, HOST, ports) for each in shape.broker_ids})
        except BaseException:
            self.abandon()
            raise

    @abstractmethod
    def _make_brokers(self, settings: dict[int, dict[str, str]]) -> None:
        """Fills `_brokers` with brokers that are down; `settings` has those of each broker, without log.dirs."""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._ports.numbers)

    @property
    def internal_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._inner_ports.numbers[-len(self._brokers) :])

    @property
    def broker_ids(self) -> list[int]:
        return list(self._brokers)

    def address(self, broker_id: int) -> tuple[str, int]:
        return HOST, self._ports.numbers[broker_id - 1]

    def state(self, broker_id: int) -> RunState:
        state: RunState = self._brokers[broker_id].state
        return state

    def may_end(self, broker_id: int, allowed: bool = True) -> None:
        self._brokers[broker_id].may_end = allowed

    async def settle(self, broker_id: int) -> None:
        if self.state(broker_id) == "running":
            with contextlib.suppress(RuntimeError, KitError):  # it has ended before its answer
                await self.command(broker_id, "live_brokers", {})  # its answer comes after the events before it
        await asyncio.sleep(0)

    def failures(self) -> list[str]:
        found, self._failures = self._failures, []
        return found

    # -- start and stop

    async def start(self) -> None:
        try:
            await asyncio.gather(*(self.start_broker(each) for each in self._brokers))
        except BaseException:
            self.abandon()
            raise

    @abstractmethod
    def abandon(self) -> None:
        """As of `Backend`: ends the brokers, then calls `_release`."""

    def _release(self) -> None:
        self._ports.release()
        self._inner_ports.release()
