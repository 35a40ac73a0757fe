"""Kafka 4.3.1 settings that this broker does not support, refused or ignored, with the reasons. An empty value, or false, is not refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.broker.config.oauth_keys import OAUTH_KEYS
from barnabas.broker.config.peer_keys import PEER_KEYS
from barnabas.broker.config.sasl_keys import SASL_KEYS
from barnabas.broker.config.ssl_keys import SSL_LISTENER_KEYS
from barnabas.broker.config.token_keys import TOKEN_KEYS
from barnabas.errors import BrokerError, ErrorCode


class Unserved(NamedTuple):
    """Why a key is not served, and whether a value is refused (or ignored with a warning)."""

    reason: str
    refused: bool


NO_JAVA: Final = "Java classes are not loaded: remove this setting"
NO_SASL: Final = "it belongs to a Java class, or to clients: remove this setting"
NO_BUILDER: Final = "principals come from the certificate or the login as in Kafka's default: remove this setting"
NO_POLICY: Final = "Java classes are not loaded, so the policy would not hold: remove this setting"
NO_TIERS: Final = "tiered storage is not served: remove this setting"

# Keys that may be set for one listener: listener.name.<name>.<key>, or listener.name.<name>.<mechanism>.<key>.
LISTENER_KEYS: Final = (
    "max.connection.creation.rate",
    "max.connections",
    *SSL_LISTENER_KEYS,
    *(key.name for key in (*SASL_KEYS, *OAUTH_KEYS)),
)
# The reason applies to all keys with these prefixes.
PREFIXES: Final[Mapping[str, Unserved]] = {
    "sasl.": Unserved(NO_SASL, True),
    "listener.name.": Unserved("a single listener has no such setting of its own: remove this", True),
    "delegation.token.": Unserved("delegation tokens have no such setting: remove it", True),
    "group.share.": Unserved("share groups are not served", False),
    "share.coordinator.": Unserved("share groups are not served", False),
    "group.streams.": Unserved("streams groups are not served", False),
    "remote.": Unserved("tiered storage is not served", False),
    "metrics.": Unserved("there are no JMX metrics", False),
    "kafka.metrics.": Unserved("there are no JMX metrics", False),
}

PROVIDERS: Final = "config.providers."  # settings of config providers, whose names the file declares
BOOTSTRAP_SERVERS: Final = "controller.quorum.bootstrap.servers"
# Settings of a node that is not alone, refused where controller.quorum.voters is missing: the node would form its own cluster.
NEED_VOTERS: Final[Mapping[str, str]] = {
    BOOTSTRAP_SERVERS: "a quorum is not found by its addresses alone (KIP-853 is not served)",
    "zookeeper.connect": "Kafka 4 has no ZooKeeper: remove this setting",
}
_REFUSED: Final[Mapping[str, str]] = {
    "principal.builder.class": NO_BUILDER,
    "security.providers": NO_JAVA,
    "ssl.engine.factory.class": NO_JAVA,
    "alter.config.policy.class.name": NO_POLICY,
    "create.topic.policy.class.name": NO_POLICY,
    "client.quota.callback.class": NO_POLICY,
    "remote.log.storage.system.enable": NO_TIERS,
    "cordoned.log.dirs": "directories cannot be cordoned, and replicas would still be placed there: remove this setting",
    "controller.quorum.auto.join.enable": "the quorum's voters are fixed: name them all in controller.quorum.voters",
}
# Suffixes of keys whose value is a secret.
_SECRETS: Final = (
    "password",
    "passphrase",
    "secret",
    "secret.key",
    "keystore.key",
    "certificate.chain",
    "certificates",
    "jaas.config",
)
_SWITCHES: Final = frozenset({"remote.log.storage.system.enable", "controller.quorum.auto.join.enable"})

_IGNORED: Final[Mapping[str, tuple[str, ...]]] = {
    "replicas do not move between directories": (
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "num.replica.alter.log.dirs.threads",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ),
    "one event loop does this work": ("group.coordinator.background.threads", "group.coordinator.threads"),
    "records of one turn of the loop are written together": ("group.coordinator.append.linger.ms",),
    "a coordinator makes a new batch for each append": ("group.coordinator.cached.buffer.max.bytes",),
    "share groups are not served": ("share.fetch.purgatory.purge.interval.requests",),
    "tiered storage is not served": ("follower.fetch.last.tiered.offset.enable",),
    "listeners are bound before the node recovers and serve once it is unfenced": ("early.start.listeners",),
    "a broker waits for the controller as long as it takes": ("server.max.startup.time.ms",),
    "leaders of partitions without one are elected when a replica comes back": ("unclean.leader.election.interval.ms",),
    "expressions are looked up again when topics or ACLs change": ("group.consumer.regex.refresh.interval.ms",),
    "it is for tests of Kafka itself": (
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
        "internal.metadata.delete.delay.millis",
        "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes",
        "log.initial.task.delay.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    ),
}

_SERVED: Final = frozenset(
    key.name for key in (*SASL_KEYS, *PEER_KEYS, *OAUTH_KEYS, *TOKEN_KEYS)
)  # of those that a prefix below refuses
_LISTENER_ENDS: Final = tuple(f".{name}" for name in LISTENER_KEYS)

UNSERVED_KEYS: Final[dict[str, Unserved]] = {
    **{name: Unserved(reason, True) for name, reason in _REFUSED.items()},
    **{name: Unserved(reason, False) for reason, names in _IGNORED.items() for name in names},
}


def unserved(name: str) -> Unserved | None:
    """None for any other key."""
    found = UNSERVED_KEYS.get(name)
    if found is not None or name in _SERVED or (name.startswith("listener.name.") and name.endswith(_LISTENER_ENDS)):
        return found
    return next((each for prefix, each in PREFIXES.items() if name.startswith(prefix)), None)


def refuse_unserved(settings: Mapping[str, str]) -> None:
    """Raises BrokerError(INVALID_CONFIG) for the first setting that must not be ignored, with its value and a remedy."""
    for name, text in _refused(settings):
        # A name that Kafka does not have may be a secret's with a mistake in it.
        shown = text if name in UNSERVED_KEYS and not name.endswith(_SECRETS) else "[hidden]"
        wrong = unserved(name)
        reason = wrong.reason if wrong is not None else ""
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Invalid value {shown} for configuration {name}: {reason}")


def _refused(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in settings.items():
        found = unserved(name)
        value = text.strip()
        asks = bool(value) and not (name in _SWITCHES and value.lower() == "false")
        if found is not None and found.refused and asks:
            yield name, value


def lone_voter(node_id: int, controller_listener: str, servers: Sequence[str], listeners: Sequence[str]) -> list[str]:
    """ID@HOST:PORT of a single-node quorum, as in Kafka's config/server.properties: the only one of controller.quorum.bootstrap.servers is the
    node's own controller listener at a loopback address. Otherwise none: other nodes may name the same address.
    """
    ports = [each.rpartition(":")[2] for each in listeners if each.partition("://")[0].upper() == controller_listener]
    own = [f"{host}:{port}" for host in ("localhost", "127.0.0.1", "[::1]") for port in ports]
    return [f"{node_id}@{servers[0]}"] if len(servers) == 1 and servers[0] in own else []
