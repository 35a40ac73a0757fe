"""Settings of a node from the variables of Kafka's container image (`barnabas serve --environment`).

`KAFKA_NODE_ID` is `node.id`: `_` is a dot, `__` an underscore, `___` a hyphen. `CLUSTER_ID` is the id of the cluster. The variables
win over a properties file. As in Kafka's image, they become lines of that file, so a backslash escapes in them, too. But a value may
have several lines, as keys in PEM text do: in Kafka's image, lines of a key are names of settings, and names are logged.

Follows Kafka 4.3.1's KafkaDockerWrapper and the script `configure` of its image, with two differences: advertised listeners are
localhost:9092 if no listener is set, as in the file that the image uses without variables; secrets of TLS need no SSL listener.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from barnabas.broker.config.properties import parse_properties
from barnabas.loggers import LEVELS

PREFIX: Final = "KAFKA_"
SECRETS: Final = "/etc/kafka/secrets"
LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
ROOT_LEVEL: Final = "KAFKA_LOG4J_ROOT_LOGLEVEL"
LOGGER_LEVELS: Final = "KAFKA_LOG4J_LOGGERS"
_OF_JAVA: Final = (
    "KAFKA_GC_LOG_OPTS",
    "KAFKA_HEAP_OPTS",
    "KAFKA_JMX_HOSTNAME",
    "KAFKA_JMX_OPTS",
    "KAFKA_JMX_PORT",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_LOG4J_OPTS",
    "KAFKA_TOOLS_LOG4J_LOGLEVEL",
)
_NO_SETTINGS: Final = frozenset({*_OF_JAVA, "KAFKA_OPTS", "KAFKA_VERSION", ROOT_LEVEL, LOGGER_LEVELS})
_LINE_END: Final = re.compile(r"(?<!\\)(?:\r\n?|\n)")  # after a backslash, the next line continues this one
_LOG4J_LEVELS: Final = {**LEVELS, "ALL": LEVELS["TRACE"], "OFF": LEVELS["FATAL"]}
# The file of a store, its setting; the file of a password, its setting.
_SECRET_FILES: Final = {
    "ssl.keystore.filename": "ssl.keystore.location",
    "ssl.truststore.filename": "ssl.truststore.location",
    "ssl.keystore.credentials": "ssl.keystore.password",
    "ssl.key.credentials": "ssl.key.password",
    "ssl.truststore.credentials": "ssl.truststore.password",
}


def environment_settings(
    environment: Mapping[str, str], properties: str = "", secrets: str = SECRETS
) -> dict[str, str]:
    """Returns the settings of a node.

    Args:
        properties: the text of a server.properties, below the variables.
        secrets: the directory of the files that KAFKA_SSL_KEYSTORE_FILENAME, KAFKA_SSL_KEYSTORE_CREDENTIALS and so on name.

    Raises ValueError: a file of a password cannot be read.
    """
    lines = [_line(name, value) for name, value in sorted(environment.items()) if _is_setting(name)]
    settings = parse_properties("\n".join([properties, *lines]))
    for name, target in _SECRET_FILES.items():
        if file := settings.pop(name, "").strip():
            path = Path(secrets, file)
            settings[target] = str(path) if name.endswith(".filename") else _password(name, path)
    if cluster_id := environment.get("CLUSTER_ID", "").strip():
        settings["cluster.id"] = cluster_id
    if settings.get("process.roles", "").strip() != "controller":
        if not settings.get(LISTENERS, "").strip() and not settings.get(ADVERTISED, "").strip():
            settings[ADVERTISED] = "PLAINTEXT://localhost:9092"
        if not settings.get(LISTENERS, "").strip():
            settings[LISTENERS] = ",".join(_on_every_address(settings[ADVERTISED]))
    return settings


def _is_setting(name: str) -> bool:
    return name.startswith(PREFIX) and name not in _NO_SETTINGS and len(name) > len(PREFIX)


def _line(name: str, value: str) -> str:
    return f"{_setting(name)}=" + _LINE_END.sub(r"\\n", value.rstrip("\r\n"))


def _setting(name: str) -> str:
    dotted = name.removeprefix(PREFIX).lower().replace("_", ".")
    return dotted.replace("...", "-").replace("..", "_")


def _password(name: str, path: Path) -> str:
    variable = PREFIX + name.replace(".", "_").upper()
    try:
        return path.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise ValueError(f"{variable}: {path} cannot be read ({reason})") from None


def _on_every_address(advertised: str) -> Iterator[str]:
    for endpoint in advertised.split(","):
        name, _, address = endpoint.strip().partition("://")
        yield f"{name}://0.0.0.0:{address.rpartition(':')[2]}"


def environment_remarks(environment: Mapping[str, str]) -> list[str]:
    """One sentence for each variable of Kafka's image that changes nothing here."""
    found = [f"variable {name} has no effect here: there is no Java" for name in _OF_JAVA if environment.get(name)]
    if "java.security.auth.login.config" in environment.get("KAFKA_OPTS", ""):
        found.append(
            "variable KAFKA_OPTS names a JAAS file, which is not read: set "
            "KAFKA_LISTENER_NAME_<LISTENER>_<MECHANISM>_SASL_JAAS_CONFIG, with ___ for a hyphen"
        )
    return found


def logger_levels(environment: Mapping[str, str]) -> dict[str, int]:
    """The level by logger ("" is the root) of KAFKA_LOG4J_ROOT_LOGLEVEL and KAFKA_LOG4J_LOGGERS. Raises ValueError: an unknown level."""
    pairs = [("", "=", environment.get(ROOT_LEVEL, ""))] if environment.get(ROOT_LEVEL, "").strip() else []
    pairs += [each.partition("=") for each in environment.get(LOGGER_LEVELS, "").split(",") if each.strip()]
    found = {}
    for name, _, level in pairs:
        number = _LOG4J_LEVELS.get(level.strip().upper())
        if number is None:
            variable = LOGGER_LEVELS if name else ROOT_LEVEL
            raise ValueError(f"{variable}: {level.strip()!r} is no level: write one of {', '.join(_LOG4J_LEVELS)}")
        found[name.strip()] = number
    return found


def started_lines(node_id: int) -> str:
    """The lines of Kafka's log by which testcontainers and scripts see that a node serves."""
    return (
        f"[BrokerLifecycleManager id={node_id}] The broker has been unfenced. Transitioning from RECOVERY to RUNNING.\n"
        f"[KafkaRaftServer nodeId={node_id}] Kafka Server started"
    )
