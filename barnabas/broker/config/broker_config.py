"""BrokerConfig: server.properties and --set, with the dynamic settings of the metadata log above them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from barnabas.broker.config.authorizer_settings import AuthorizerSettings, authorizer_settings, check_nodes
from barnabas.broker.config.key import WILDCARDS, ConfigSource, ConfigValue, invalid_config
from barnabas.broker.config.properties import parse_properties
from barnabas.broker.config.refusals import check_listener_prefixes, refuse_unserved
from barnabas.broker.config.sasl_settings import SASL_PROTOCOLS, SaslSettings
from barnabas.broker.config.table import PROVIDERS, SERVER_KEYS, is_per_broker, server_key
from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError

REPLICATION_FACTOR_MAX = 3  # of the internal topics, as in Kafka, if the quorum has that many brokers
BROKER = "broker"
CONTROLLER = "controller"
CONTROLLER_LISTENER = "CONTROLLER"  # default name of the controller listener
PLAINTEXT = "PLAINTEXT"
TLS_PROTOCOLS = frozenset({"SSL", "SASL_SSL"})
SECURITY_PROTOCOLS = {PLAINTEXT: 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
PROTOCOL_MAP = "listener.security.protocol.map"
VOTERS = "controller.quorum.voters"
BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers"
# Settings of a node that is not alone, refused where controller.quorum.voters is missing: the node would form its own cluster.
NEED_VOTERS = {
    BOOTSTRAP_SERVERS: "a quorum is not found by its addresses alone (KIP-853 is not served)",
    "zookeeper.connect": "Kafka 4 has no ZooKeeper: remove this setting",
}
T = TypeVar("T", bool, int, float, str, tuple[str, ...])
Resolve = Callable[[Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener: name, host and port to bind or advertise, security protocol."""

    name: str
    host: str  # "" binds every interface
    port: int  # 0 asks for a free one
    security_protocol: str = "PLAINTEXT"

    @property
    def security_protocol_id(self) -> int:
        """In registration records: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""
        return SECURITY_PROTOCOLS[self.security_protocol]


class BrokerConfig:
    """Effective configuration of a node: dynamic of the broker, dynamic cluster default, server.properties, default, in this order.

    Unknown keys are no error, as in Kafka: plugins have their own keys.

    Attributes:
        static: texts of server.properties and --set.
        cluster_default, dynamic: settings of the metadata log for all brokers and for this one.
        resolve: replaces the placeholders of dynamic settings (`config_providers`); `static` has none left.
        roles: of process.roles; both by default. A controller is one of the voters.
        listeners, advertised_listeners: for clients and brokers; empty without the role broker.
        controller_listener: None if the cluster can have no other node.
        controller_listener_name: of all controllers, also for a node without the role.
        voter_endpoints: by id, ascending; empty: this node alone.
        has_other_nodes: whether the cluster may have more nodes.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, resolve: Resolve = dict) -> None:
        """Raises BrokerError(INVALID_CONFIG) for a value of the wrong type or outside its bounds."""
        self.static: dict[str, str] = dict(settings or {})
        self.cluster_default: Mapping[str, str] = {}
        self.dynamic: Mapping[str, str] = {}
        self.resolve = resolve
        self._resolved: tuple[Mapping[str, str], ...] = ()  # dynamic, cluster_default
        self.unknown_keys: tuple[str, ...] = tuple(
            sorted(name for name in self.static if server_key(name) is None and not name.startswith(PROVIDERS))
        )
        self._static_values: dict[str, ConfigValue] = {
            name: SERVER_KEYS[name].parse(text) for name, text in self.static.items() if name in SERVER_KEYS
        }
        for name, synonym in (
            ("broker.id", "node.id"),
            ("node.id", "broker.id"),
        ):  # one key shows as the other, as in Kafka
            value = self._static_values.get(synonym)
            if name not in self.static and isinstance(value, int) and value >= 0:
                self.static[name], self._static_values[name] = self.static[synonym], value
        self._defaults: dict[str, ConfigValue] = {name: key.default for name, key in SERVER_KEYS.items()}
        self._defaults.update(self._derived_defaults())
        self._values: dict[str, ConfigValue] = {**self._defaults, **self._static_values}
        for name, text in self.static.items():
            key = server_key(name)
            if key is not None and name not in SERVER_KEYS:
                key.parse(text)
        refuse_unserved(self.static)
        self._check_node_id()
        self.roles: frozenset[str] = frozenset(self.get_list("process.roles")) or frozenset({BROKER, CONTROLLER})
        controller_names = tuple(name.upper() for name in self.get_list("controller.listener.names")) or (
            CONTROLLER_LISTENER,
        )
        self._protocols = self._security_protocols(controller_names)
        self._listener_names = frozenset({*self._protocols, *controller_names})
        self.check_listener_names(self.static)
        self.voter_endpoints: dict[int, Endpoint] = self._voters(controller_names[0])
        self._check_voters(controller_names)
        self.has_other_nodes = bool(self.voter_endpoints) or len(self.roles) == 1
        every = tuple(self._endpoints("listeners", self.get_list("listeners")))
        self.controller_listener = self._controller_listener(every, controller_names)
        self.listeners = self._client_listeners(every, controller_names)
        self.advertised_listeners = self._advertised_listeners(controller_names)
        self.host_name = "127.0.0.1"  # advertised for a listener without a host; a program sets the machine's name
        self.inter_broker_listener = self._inter_broker_listener()
        self._check_authorizer(controller_names[0])
        self.controller_listener_name = controller_names[0]
        for name in self.tls_listeners:
            self._check_tls(name)
        self.check_logins()

    @classmethod
    def from_properties(cls, text: str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """`overrides` (--set) win over the text of server.properties."""
        return cls({**parse_properties(text), **(overrides or {})})

    # --- values -------------------------------------------------------------------------------------------------

    def value(self, name: str) -> ConfigValue:
        """None if not set. Raises LocalProtocolError for an unknown server key."""
        try:
            return self._values[name]
        except KeyError:
            raise LocalProtocolError(f"{name!r} is no server configuration key") from None

    def get_int(self, name: str) -> int:
        return _of_type(name, self.value(name), int)

    def listener_value(self, listener: str, name: str) -> ConfigValue:
        """listener.name.<listener>.<name> in any layer, else the key itself. Raises LocalProtocolError for an unknown key.

        `name` may have a mechanism's prefix (scram-sha-256.sasl.jaas.config): then the key without it is the last source.
        """
        prefixed = f"listener.name.{listener.lower()}.{name}"
        key = _listener_key(prefixed)
        if key is None:
            return self.value(name)
        for layer in (*self._resolved, self.static):
            if prefixed in layer:
                try:
                    return key.parse(layer[prefixed])
                except BrokerError:
                    continue  # written by a newer version with wider bounds
        return self.value(key.name)

    def get_listener_int(self, listener: str, name: str) -> int:
        return _of_type(name, self.listener_value(listener, name), int)

    def get_bool(self, name: str) -> bool:
        return _of_type(name, self.value(name), bool)

    def get_float(self, name: str) -> float:
        return _of_type(name, self.value(name), float)

    def get_str(self, name: str) -> str | None:
        """None if not set."""
        value = self.value(name)
        return None if value is None else _of_type(name, value, str)

    def get_list(self, name: str) -> tuple[str, ...]:
        """Empty if not set."""
        value = self.value(name)
        return () if value is None else _of_type(name, value, tuple)

    # --- common values ------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """node.id, or broker.id if only that is set; 1 without both."""
        value = self._values["node.id"]
        if isinstance(value, int):
            return value
        broker_id = self.get_int("broker.id")
        return broker_id if broker_id >= 0 else 1

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """log.dirs, else log.dir; the first holds the metadata log. Raises BrokerError(INVALID_CONFIG) if metadata.log.dir is none of them."""
        found = self.get_list("log.dirs") or self.get_list("log.dir")
        first = self.get_str("metadata.log.dir")
        if first is None:
            return found
        if first not in found:
            raise invalid_config("metadata.log.dir", first, f"name one of log.dirs here: {', '.join(found)}")
        return (first, *(each for each in found if each != first))

    @property
    def voters(self) -> tuple[str, ...]:
        """controller.quorum.voters; empty: this node alone."""
        return self.get_list(VOTERS)

    @property
    def tls_listeners(self) -> tuple[str, ...]:
        mine = (*self.listeners, *([self.controller_listener] if self.controller_listener else []))
        return tuple(each.name for each in mine if each.security_protocol in TLS_PROTOCOLS)

    def tls_value(self, listener: str, name: str) -> ConfigValue:
        """As `listener_value`, for an ssl.* key: with SASL, ssl.client.auth needs the listener's prefix, as in Kafka (KIP-684)."""
        own = f"listener.name.{listener.lower()}.{name}" in self.static
        if name == "ssl.client.auth" and not own and self.security_protocol(listener) == "SASL_SSL":
            return "none"
        return self.listener_value(listener, name)

    def security_protocol(self, listener: str) -> str:
        return self._protocols.get(listener, PLAINTEXT)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Of metrics.listen; None if not set."""
        text = self.get_str("metrics.listen")
        if text is None:
            return None
        host, _, port = text.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def fixed(self) -> BrokerConfig:
        """The configuration as of now, for the worker thread."""
        return copy(self)  # `reconfigure` changes no object that the copy shares

    # --- layers ---------------------------------------------------------------------------------------------------

    def reconfigure(self, cluster_default: Mapping[str, str], dynamic: Mapping[str, str]) -> None:
        """Applies the settings of the metadata log. Ignores values that do not parse, unknown keys, and keys for single brokers in `cluster_default`."""
        cluster_default = {name: text for name, text in cluster_default.items() if not is_per_broker(name)}  # as Kafka
        self.cluster_default = cluster_default
        self.dynamic = dynamic
        values = {**self._defaults, **self._static_values}
        self._resolved = self._with_values(dynamic), self._with_values(cluster_default)
        for layer in reversed(self._resolved):
            for name, text in layer.items():
                key = SERVER_KEYS.get(name)
                if key is None or not key.dynamic:
                    continue
                try:
                    values[name] = key.parse(text)
                except BrokerError:
                    continue  # written by a newer version with wider bounds: keeps the lower layer's value
        self._values = values

    def _with_values(self, layer: Mapping[str, str]) -> Mapping[str, str]:
        try:
            return self.resolve(layer)
        except BrokerError:
            return layer  # the file of a placeholder cannot be read any more

    def layers(self, name: str) -> Iterator[tuple[ConfigSource, str]]:
        """The layers that set `name`, best source first, with the text shown there. The default is last, if there is one."""
        key = SERVER_KEYS.get(name)
        if name in self.dynamic:
            yield ConfigSource.DYNAMIC_BROKER, self.dynamic[name]
        if name in self.cluster_default:
            yield ConfigSource.DYNAMIC_DEFAULT_BROKER, self.cluster_default[name]
        if name in self.static:
            yield ConfigSource.STATIC_BROKER, self.static[name].strip()
        default = key.render(self._defaults[name]) if key is not None else None
        if default is not None:
            yield ConfigSource.DEFAULT, default

    # --- construction -------------------------------------------------------------------------------------------

    def _derived_defaults(self) -> dict[str, ConfigValue]:
        """Defaults by the number of brokers, so that a single one can hold the internal topics. Nodes of one role do not know that number."""
        voters, roles = self._static_values.get(VOTERS), self._static_values.get("process.roles")
        brokers = len(voters) if isinstance(voters, tuple) and voters else 1
        if isinstance(roles, tuple) and len(set(roles)) == 1:
            brokers = REPLICATION_FACTOR_MAX
        factor = min(REPLICATION_FACTOR_MAX, brokers)
        return {
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": max(1, factor - 1),
        }

    def _check_node_id(self) -> None:
        node_id, broker_id = self._static_values.get("node.id"), self._static_values.get("broker.id", -1)
        if node_id is not None and broker_id not in (-1, node_id):
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"node.id is {node_id} and broker.id is {broker_id}: set one, or both to the same",
            )

    def _voters(self, listener: str) -> dict[int, Endpoint]:
        name, found = VOTERS, dict[int, Endpoint]()
        for text in self.get_list(name) if name in self.static else self._lone_voter(listener):
            voter, at, address = text.partition("@")
            host, colon, port = address.rpartition(":")
            if not at or not voter.isdigit() or not colon or not port.isdigit() or not 0 < int(port) <= 65_535:
                raise invalid_config(name, text, "write ID@HOST:PORT, e.g. 1@127.0.0.1:9093,2@127.0.0.1:9094")
            endpoint = self._endpoint("controller.listener.names", listener, listener, host, port)
            if endpoint.host in ("", *WILDCARDS):
                raise invalid_config(name, text, "give an address at which the other nodes reach this voter")
            if int(voter) in found:
                raise invalid_config(name, text, f"voter {int(voter)} is there twice")
            if endpoint in found.values():
                raise invalid_config(name, text, f"another voter has the address {address}, too")
            found[int(voter)] = endpoint
        return dict(sorted(found.items()))

    def _lone_voter(self, controller_listener: str) -> list[str]:
        """ID@HOST:PORT of a single-node quorum, as in Kafka's config/server.properties: the only one of controller.quorum.bootstrap.servers
        is the node's own controller listener at a loopback address. Otherwise none: other nodes may name the same address.
        """
        servers = self.get_list(BOOTSTRAP_SERVERS)
        mine = [each for each in self.get_list("listeners") if each.partition("://")[0].upper() == controller_listener]
        ports = [each.rpartition(":")[2] for each in mine]
        own = [f"{host}:{port}" for host in ("localhost", "127.0.0.1", "[::1]") for port in ports]
        return [f"{self.node_id}@{servers[0]}"] if len(servers) == 1 and servers[0] in own else []

    def _check_voters(self, controller_names: tuple[str, ...]) -> None:
        name, voters, node_id = VOTERS, self.voter_endpoints, self.node_id
        shown = ",".join(self.get_list(name))
        if not voters:
            self._check_alone(controller_names)
        elif "node.id" not in self.static and (len(voters) > 1 or CONTROLLER not in self.roles):
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"node.id is not set and {name} names other nodes: give each node an id of its own",
            )
        if CONTROLLER not in self.roles:
            if node_id in voters:
                raise invalid_config(
                    name, shown, f"node {node_id} has only the role broker (process.roles) and cannot be a voter"
                )
        elif voters and node_id not in voters:
            raise invalid_config(
                name, shown, f"node {node_id} has the role controller (process.roles) and must be one of the voters"
            )

    def _check_alone(self, controller_names: tuple[str, ...]) -> None:
        """Without voters the node is its own cluster: refuses settings of a larger one."""
        if VOTERS in self.static:  # as a variable that a script did not set
            raise invalid_config(
                VOTERS, "", "name every controller, ID@HOST:PORT,…, or remove the setting for a node alone"
            )
        missing = f"{VOTERS} is not set: name every controller there, ID@HOST:PORT,…, the same on every node"
        for name, reason in NEED_VOTERS.items():
            if self.static.get(name, "").strip():
                raise invalid_config(name, self.static[name], f"{reason}, and {missing}")
        mine = [each for each in self.get_list("listeners") if each.partition("://")[0].upper() in controller_names]
        if mine:
            raise invalid_config("listeners", mine[0], f"a controller listener is for other nodes, and {missing}")
        if len(self.roles) == 1:
            raise invalid_config(
                "process.roles", ",".join(self.roles), f"a node of one role needs others, and {missing}"
            )

    def authorizer(self) -> AuthorizerSettings | None:
        """The settings of the authorizer; None: everything is allowed. Raises BrokerError(INVALID_CONFIG)."""
        texts = {
            "authorizer.class.name": self.get_str("authorizer.class.name") or "",
            "super.users": self.get_str("super.users") or "",
            "allow.everyone.if.no.acl.found": str(self.get_bool("allow.everyone.if.no.acl.found")),
        }
        given = {name: text for name, text in texts.items() if name in self.static}
        return authorizer_settings(given, controller=CONTROLLER in self.roles)

    def _check_authorizer(self, controller_name: str) -> None:
        """Refuses an authorizer that would deny the cluster's other nodes."""
        settings = self.authorizer()
        if settings is not None and (self.voter_endpoints or self.controller_listener is not None):
            names = (controller_name, *([self.inter_broker_listener] if BROKER in self.roles else []))
            check_nodes(settings, [self._protocols.get(name, name) for name in names])

    def _security_protocols(self, controller_names: tuple[str, ...]) -> dict[str, str]:
        """The protocol by listener name; a controller listener is PLAINTEXT if the map or its name is a default, as in Kafka."""
        found: dict[str, str] = {}
        for pair in (self.get_str(PROTOCOL_MAP) or "").split(","):
            if not pair.strip():
                continue
            listener, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
            if not colon or not listener or protocol not in SECURITY_PROTOCOLS:
                known = ", ".join(SECURITY_PROTOCOLS)
                raise invalid_config(PROTOCOL_MAP, pair, f"write NAME:PROTOCOL; the protocols are {known}")
            if found.setdefault(listener, protocol) != protocol:
                raise invalid_config(
                    PROTOCOL_MAP, pair, f"listener {listener} is there twice, also with {found[listener]}"
                )
        if PROTOCOL_MAP not in self.static or "controller.listener.names" not in self.static:
            for name in controller_names:
                found.setdefault(name, PLAINTEXT)
        return found

    def check_listener_names(self, names: Iterable[str]) -> None:
        """Refuses settings of unknown listeners; a controller may have those of brokers. Raises BrokerError."""
        if BROKER in self.roles:
            check_listener_prefixes(names, self._listener_names)

    def _check_tls(self, listener: str) -> None:
        """Requires a key, and authorities if the listener asks for certificates."""
        client_auth = self.tls_value(listener, "ssl.client.auth")
        missing = None
        if not self.tls_value(listener, "ssl.keystore.location") and not self.tls_value(listener, "ssl.keystore.key"):
            missing, why = "ssl.keystore.location", "TLS needs a private key and a certificate"
        elif client_auth != "none" and not (
            self.tls_value(listener, "ssl.truststore.location")
            or self.tls_value(listener, "ssl.truststore.certificates")
        ):
            missing, why = "ssl.truststore.location", f"ssl.client.auth={client_auth} needs authorities"
        if missing:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"{missing} is not set (nor listener.name.{listener.lower()}.{missing}) and listener {listener} speaks TLS: {why}. "
                f"A working block: ssl.keystore.type=PEM, ssl.keystore.location=/path/node.pem (key and certificate chain), "
                f"ssl.truststore.type=PEM, ssl.truststore.location=/path/ca.pem",
            )

    def check_logins(self) -> None:
        """Refuses SASL listeners on which no client, or no other node, could log in. Raises BrokerError(INVALID_CONFIG)."""
        for endpoint in (*self.listeners, self.controller_listener):
            if endpoint is not None and endpoint.security_protocol in SASL_PROTOCOLS:
                settings = SaslSettings(self, endpoint.name)
                settings.check()
                if self.has_other_nodes and endpoint is self.controller_listener:
                    settings.check_between_nodes("sasl.mechanism.controller.protocol")
                elif self.has_other_nodes and endpoint.name == self.inter_broker_listener:
                    settings.check_between_nodes("sasl.mechanism.inter.broker.protocol")

    def _advertised_listeners(self, controller_names: tuple[str, ...]) -> tuple[Endpoint, ...]:
        name = "advertised.listeners"
        every = self._endpoints(name, self.get_list("advertised.listeners"))
        found = tuple(each for each in every if each.name not in controller_names)
        bound = [each.name for each in self.listeners]
        for each in found:
            if BROKER in self.roles and each.name not in bound:
                raise invalid_config(name, each.name, f"listeners has only {', '.join(bound)}")
            if each.host in WILDCARDS:
                raise invalid_config(name, each.host, "give an address at which clients reach this node")
        for each in () if found or self.voter_endpoints.keys() <= {self.node_id} else self.listeners:
            if each.host in WILDCARDS:  # Kafka refuses it, too
                raise invalid_config(
                    "listeners", each.host, f"no other node can connect to this address: set {name}, too"
                )
        return found or self.listeners

    def _controller_listener(self, every: tuple[Endpoint, ...], names: tuple[str, ...]) -> Endpoint | None:
        mine = [each for each in every if each.name in names]
        if CONTROLLER not in self.roles:
            if mine:
                raise invalid_config(
                    "listeners", mine[0].name, "the controller listener is for nodes with the role controller alone"
                )
            return None
        if len(mine) > 1:
            raise invalid_config(
                "listeners", mine[1].name, f"{mine[0].name} is a controller listener already: one is enough"
            )
        return mine[0] if mine else self.voter_endpoints.get(self.node_id)

    def _client_listeners(self, every: tuple[Endpoint, ...], controller_names: tuple[str, ...]) -> tuple[Endpoint, ...]:
        found = tuple(each for each in every if each.name not in controller_names)
        if BROKER in self.roles:
            if not found:
                raise invalid_config(
                    "listeners", ",".join(self.get_list("listeners")), "there is no listener for clients"
                )
            return found
        if found and "listeners" in self.static:
            raise invalid_config(
                "listeners", found[0].name, "a node without the role broker has no listeners for clients"
            )
        return ()

    def _inter_broker_listener(self) -> str:
        name = self.get_str("inter.broker.listener.name")
        name = name.upper() if name is not None else None
        offered = [each.name for each in self.advertised_listeners]
        if name is not None and BROKER in self.roles and name not in offered:
            raise invalid_config("inter.broker.listener.name", name, f"there are the listeners {', '.join(offered)}")
        key = "security.inter.broker.protocol"
        protocol = self.get_str("security.inter.broker.protocol") or PLAINTEXT
        if protocol not in SECURITY_PROTOCOLS:
            raise invalid_config(key, protocol, f"the protocols are {', '.join(SECURITY_PROTOCOLS)}")
        if protocol != PLAINTEXT and name is not None:
            raise invalid_config(key, protocol, f"inter.broker.listener.name={name} is set, too: set one of them")
        if protocol != PLAINTEXT and BROKER in self.roles:
            if protocol not in offered:
                raise invalid_config(key, protocol, f"it names the listener {protocol}; there are {', '.join(offered)}")
            return protocol
        return name or (PLAINTEXT if PLAINTEXT in offered or not offered else offered[0])

    def _endpoint(self, key: str, text: str, name: str, host: str, port: str) -> Endpoint:
        """Raises INVALID_CONFIG for an unsupported protocol: ignoring it would be dangerous."""
        protocol = self._protocols.get(name)
        if protocol is None:
            mapped = f"{name}:{name if name in SECURITY_PROTOCOLS else 'PROTOCOL'}"
            known = ", ".join(SECURITY_PROTOCOLS)
            raise invalid_config(
                key,
                text,
                f"listener {name} has no security protocol: add {mapped} to {PROTOCOL_MAP}; the protocols are {known}",
            )
        return Endpoint(name, host.strip("[]"), int(port), protocol)

    def _endpoints(self, name: str, texts: tuple[str, ...]) -> Iterator[Endpoint]:
        seen: set[str] = set()
        for text in texts:
            listener, separator, address = text.partition("://")
            listener = listener.upper()  # as Kafka
            host, colon, port = address.rpartition(":")
            if not separator or not listener or not colon or not port.isdigit() or int(port) > 65_535:
                raise invalid_config(name, text, "write NAME://HOST:PORT, e.g. PLAINTEXT://127.0.0.1:9092")
            if listener in seen:
                raise invalid_config(name, text, f"listener {listener} is there twice")
            seen.add(listener)
            yield self._endpoint(name, text, listener, host, port)


# For each connection; this program writes the names, not a client.
_listener_key = lru_cache(maxsize=1_024)(server_key)


def _of_type(name: str, value: ConfigValue, kind: type[T]) -> T:
    """Raises LocalProtocolError if the table gives the key another type."""
    if type(value) is not kind:
        raise LocalProtocolError(f"{name!r} is {value!r}, not of type {kind.__name__}")
    return value
