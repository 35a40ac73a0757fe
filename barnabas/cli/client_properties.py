"""Kafka's client properties, as in the file of `--command-config`, in a profile, or in `-X key=value`.

Every property is used, refused, or named as having no effect. `arguments` returns those of one kind of client as keyword
arguments of `Admin`, `Producer` or `Consumer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from cyclopts import Parameter

from barnabas.broker.config.properties import parse_properties
from barnabas.errors import BrokerError

ClientKind = Literal["admin", "producer", "consumer"]

CONFIG_BYTES_MAX = 1024 * 1024
Properties = Annotated[
    tuple[str, ...],
    Parameter(name=["--property", "-X"], help="key=value, a client property of Kafka; may be repeated."),
]


class WrongCall(ValueError):
    """A command was called in a wrong way: an option, a file or a profile cannot be used. The exit code is 2."""


class _Property(NamedTuple):
    """A property with an effect: the clients that have it, their argument, and how its value is read."""

    kinds: tuple[ClientKind, ...]
    argument: str
    read: Callable[[str], Any]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text.lower() == "true"


def _lower(text: str) -> str:
    return text.lower()


_ASSIGNORS: Final = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}


def _assignors(text: str) -> list[str]:
    return [_ASSIGNORS.get(name.strip(), name.strip()) for name in text.split(",") if name.strip()]


_ALL: Final[tuple[ClientKind, ...]] = ("admin", "producer", "consumer")
_P: Final[tuple[ClientKind, ...]] = ("producer",)
_C: Final[tuple[ClientKind, ...]] = ("consumer",)

CLIENT_PROPERTIES: Final[Mapping[str, _Property]] = {
    "bootstrap.servers": _Property(_ALL, "bootstrap_servers", str),
    "client.id": _Property(_ALL, "client_id", str),
    "request.timeout.ms": _Property(_ALL, "request_timeout_ms", _whole),
    "retry.backoff.ms": _Property(_ALL, "retry_backoff_ms", _whole),
    "metadata.max.age.ms": _Property(("producer", "consumer"), "metadata_max_age_ms", _whole),
    "acks": _Property(_P, "acks", str),
    "enable.idempotence": _Property(_P, "enable_idempotence", _boolean),
    "transactional.id": _Property(_P, "transactional_id", str),
    "transaction.timeout.ms": _Property(_P, "transaction_timeout_ms", _whole),
    "compression.type": _Property(_P, "compression_type", _lower),
    "batch.size": _Property(_P, "max_batch_size", _whole),
    "linger.ms": _Property(_P, "linger_ms", _whole),
    "max.request.size": _Property(_P, "max_request_size", _whole),
    "max.in.flight.requests.per.connection": _Property(_P, "max_in_flight_requests_per_connection", _whole),
    "delivery.timeout.ms": _Property(_P, "delivery_timeout_ms", _whole),
    "max.block.ms": _Property(_P, "max_block_ms", _whole),
    "buffer.memory": _Property(_P, "buffer_memory", _whole),
    "transaction.two.phase.commit.enable": _Property(_P, "two_phase_commit", _boolean),
    "group.id": _Property(_C, "group_id", str),
    "group.instance.id": _Property(_C, "group_instance_id", str),
    "group.protocol": _Property(_C, "group_protocol", _lower),
    "group.remote.assignor": _Property(_C, "group_remote_assignor", str),
    "fetch.min.bytes": _Property(_C, "fetch_min_bytes", _whole),
    "fetch.max.wait.ms": _Property(_C, "fetch_max_wait_ms", _whole),
    "fetch.max.bytes": _Property(_C, "fetch_max_bytes", _whole),
    "max.partition.fetch.bytes": _Property(_C, "max_partition_fetch_bytes", _whole),
    "max.poll.records": _Property(_C, "max_poll_records", _whole),
    "auto.offset.reset": _Property(_C, "auto_offset_reset", _lower),
    "enable.auto.commit": _Property(_C, "enable_auto_commit", _boolean),
    "auto.commit.interval.ms": _Property(_C, "auto_commit_interval_ms", _whole),
    "isolation.level": _Property(_C, "isolation_level", _lower),
    "check.crcs": _Property(_C, "check_crcs", _boolean),
    "partition.assignment.strategy": _Property(_C, "partition_assignment_strategy", _assignors),
    "session.timeout.ms": _Property(_C, "session_timeout_ms", _whole),
    "heartbeat.interval.ms": _Property(_C, "heartbeat_interval_ms", _whole),
    "max.poll.interval.ms": _Property(_C, "max_poll_interval_ms", _whole),
    "client.rack": _Property(_C, "client_rack", str),
}

# Kafka's clients know these, the clients here do not
_WITHOUT_EFFECT: Final = frozenset(
    [
        "allow.auto.create.topics",
        "auto.include.jmx.reporter",
        "bootstrap.controllers",
        "client.dns.lookup",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "security.providers",
        "send.buffer.bytes",
        "share.acknowledgement.mode",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "value.deserializer",
        "value.serializer",
    ]
)
_PREFIXES_WITHOUT_EFFECT: Final = ("metrics.context.",)
_PROVIDERS: Final = "config.providers"
_SECURITY: Final = ("security.protocol", "ssl.", "sasl.")


def _resolved(pairs: Mapping[str, str], place: str) -> Mapping[str, str]:
    from barnabas.broker.node.config_providers import ConfigProviders  # here, because few calls need it

    try:
        return ConfigProviders(pairs).resolve(pairs)
    except BrokerError as error:
        raise WrongCall(f"{place}: {error.message}") from None


class ClientProperties:
    """Client properties with the place that they come from, for messages.

    Args:
        pairs: names and values.
        place: for example "client.properties" or "profile 'local'".

    Raises WrongCall: a value is invalid.

    Attributes:
        security: the properties of TLS and SASL; `security_arguments` makes arguments of them.
    """

    def __init__(self, pairs: Mapping[str, str], place: str) -> None:
        self.place = place
        self.pairs = dict(pairs)
        self._values: dict[str, Any] = {}
        self.security: dict[str, str] = {}
        self.without_effect: list[str] = []  # sentences, one for each such property
        for name, value in (_resolved(pairs, place) if _PROVIDERS in pairs else pairs).items():
            if not name.startswith(_PROVIDERS):
                self._take(name, value.strip())

    def arguments(self, kind: ClientKind) -> dict[str, Any]:
        """The properties of one kind of client, as keyword arguments."""
        return {
            CLIENT_PROPERTIES[name].argument: value
            for name, value in self._values.items()
            if kind in CLIENT_PROPERTIES[name].kinds
        }

    def get(self, name: str) -> Any:
        """The value of a property; None if it is not set."""
        return self._values.get(name)

    def _take(self, name: str, value: str) -> None:
        known = CLIENT_PROPERTIES.get(name)
        if known is not None:
            try:
                self._values[name] = known.read(value)
            except ValueError as error:
                raise WrongCall(f"{self.place}: {name}={value!r} {error}") from None
        elif name.startswith(_SECURITY):
            self._take_security(name, value)
        elif name in _WITHOUT_EFFECT or name.startswith(_PREFIXES_WITHOUT_EFFECT):
            self.without_effect.append(f"{self.place}: {name} has no effect")
        else:
            hint = _hint(name, [*CLIENT_PROPERTIES, "security.protocol"])
            self.without_effect.append(f"{self.place}: unknown property {name!r} has no effect{hint}")

    def _take_security(self, name: str, value: str) -> None:
        from barnabas.client.net.security_properties import SECURITY_PROPERTIES  # here, because few calls need it

        if name in SECURITY_PROPERTIES:
            self.security[name] = value
        else:
            self.without_effect.append(f"{self.place}: {name} has no effect")


def merged_security(sources: Sequence[ClientProperties]) -> dict[str, str]:
    """The properties of TLS and SASL; the first source that has one counts."""
    merged: dict[str, str] = {}
    for source in reversed(sources):
        merged.update(source.security)
    return merged


def security_arguments(sources: Sequence[ClientProperties]) -> dict[str, Any]:
    """The keyword arguments of TLS and SASL of any client. `sources`: the first one that has a property counts.

    Raises WrongCall: a property is missing or invalid, or a file cannot be read.
    """
    merged = merged_security(sources)
    if not merged:
        return {}
    from barnabas.client.errors import IllegalState
    from barnabas.client.net.security import check_security
    from barnabas.client.net.security_properties import security_from_properties

    try:
        found = security_from_properties(merged)
        check_security(found)
    except IllegalState as error:
        places = " and ".join(source.place for source in sources if source.security)
        raise WrongCall(f"{places}: {error.message}") from None
    return found


def read_client_properties(path: Path) -> ClientProperties:
    """Reads a file of client properties. Raises WrongCall: the file cannot be read, or a value is invalid."""
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
        if len(data) > CONFIG_BYTES_MAX:
            raise WrongCall(f"{path} has more than {CONFIG_BYTES_MAX} bytes: is it a file of client properties?")
        text = data.decode()
    except OSError as error:
        raise WrongCall(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WrongCall(f"cannot read {path}: it is not a text in UTF-8") from None
    return ClientProperties(parse_properties(text), str(path))


def extra_arguments(kind: ClientKind, assignments: tuple[str, ...]) -> dict[str, Any]:
    """The properties as keyword arguments of a client.

    Raises WrongCall: one is not key=value, has an invalid value, or is not known to this kind of client.
    """
    pairs: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise WrongCall(f"-X {assignment!r} is not key=value")
        known = CLIENT_PROPERTIES.get(name)
        if not name.startswith(_SECURITY) and (known is None or kind not in known.kinds):
            hint = _hint(name, [each for each, entry in CLIENT_PROPERTIES.items() if kind in entry.kinds])
            raise WrongCall(f"-X {name}: no property of a {kind} here{hint}")
        pairs[name] = value
    properties = ClientProperties(pairs, "-X")
    return {**properties.arguments(kind), **security_arguments([properties])}


def _hint(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown property, with the known one that is most like it."""
    from difflib import get_close_matches  # here, because its import takes longer than a small command

    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
