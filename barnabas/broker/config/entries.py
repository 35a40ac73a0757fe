"""DescribeConfigs entries: each key with value, source and synonyms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.group_config import group_value
from barnabas.broker.config.key import ConfigKey, ConfigSource
from barnabas.broker.config.table import (
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    NOT_DESCRIBED,
    SERVER_KEYS,
    TOPIC_KEYS,
    server_key,
)
from barnabas.broker.config.topic_config import topic_value

# A server key and the keys of coarser units that replace it.
_FAMILIES: Final = {name: key.synonyms for key in TOPIC_KEYS.values() for name in key.synonyms}


class SynonymEntry(NamedTuple):
    """One layer that sets a value. `value` is None if it must not be shown."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One configuration key of a resource."""

    name: str
    value: str | None
    source: ConfigSource
    effective_source: ConfigSource
    read_only: bool
    sensitive: bool
    type: int
    doc: str
    synonyms: tuple[SynonymEntry, ...]


def _layers(config: BrokerConfig, names: tuple[str, ...]) -> list[SynonymEntry]:
    """Best source first; within a layer in the order of `names`."""
    found = [
        SynonymEntry(name, text, source)
        for name in names
        if name in SERVER_KEYS
        for source, text in config.layers(name)
    ]
    return sorted(found, key=lambda entry: entry.source)


def _from_main_key(entries: list[SynonymEntry], main: str) -> tuple[SynonymEntry, ...]:
    for index, entry in enumerate(entries):
        if entry.name == main:
            return tuple(entries[index:])
    return ()


def topic_entries(config: BrokerConfig, settings: Mapping[str, str]) -> Iterator[ConfigEntry]:
    for key in TOPIC_KEYS.values():
        yield _topic_entry(config, settings, key)


def _topic_entry(config: BrokerConfig, settings: Mapping[str, str], key: ConfigKey) -> ConfigEntry:
    # As in Kafka: the topic's own value, then the server keys layer by layer, without those before the first of the main key. With only
    # log.retention.hours set, retention.ms has source DEFAULT here; CreateTopics names the layer that decided (`effective_source`).
    layers = _layers(config, key.synonyms)
    synonyms = _from_main_key(layers, key.synonyms[0]) if key.synonyms else ()
    effective_source = layers[0].source if layers else ConfigSource.DEFAULT
    own = settings.get(key.name)
    if own is not None:
        synonyms = (SynonymEntry(key.name, own.strip(), ConfigSource.DYNAMIC_TOPIC), *synonyms)
        effective_source = ConfigSource.DYNAMIC_TOPIC
    value = key.render(topic_value(config, settings, key.name))
    return _entry(key, value, synonyms)._replace(effective_source=effective_source)


def _entry(key: ConfigKey, value: str | None, synonyms: tuple[SynonymEntry, ...]) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    return ConfigEntry(key.name, value, source, source, not key.dynamic, key.sensitive, key.type, key.doc, synonyms)


def broker_entries(config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Every server key, and unknown settings of the file, the command line and the metadata log."""
    for name, key in SERVER_KEYS.items():
        entry = _server_entry(config, name, key)
        if name not in NOT_DESCRIBED:
            yield entry
        elif entry.source is not ConfigSource.DEFAULT:
            told = tuple(each for each in entry.synonyms if each.source is not ConfigSource.DEFAULT)
            yield entry._replace(synonyms=told)
    for name in dict.fromkeys((*config.static, *config.dynamic)):
        if name not in SERVER_KEYS:
            of_listener = server_key(name)
            # Kafka does not show the value of an unknown key: it might be a secret.
            hidden = of_listener is None or of_listener.sensitive
            synonyms = tuple(
                SynonymEntry(name, None if hidden else text, source) for source, text in config.layers(name)
            )
            kind, source = 0 if of_listener is None else of_listener.type, synonyms[0].source
            yield ConfigEntry(name, synonyms[0].value, source, source, True, hidden, kind, "", synonyms)


def _server_entry(config: BrokerConfig, name: str, key: ConfigKey) -> ConfigEntry:
    layers = _from_main_key(_layers(config, _FAMILIES.get(name, (name,))), name)
    value = None if key.sensitive or not layers else key.render(config.value(name))
    if layers and (layers[0].name != name or "${" in (layers[0].value or "")):  # not what a placeholder stands for
        value = layers[0].value
    return _entry(key, value, layers)


def group_entries(config: BrokerConfig, settings: Mapping[str, str]) -> Iterator[ConfigEntry]:
    for name, key in GROUP_KEYS.items():
        layers = tuple(_layers(config, (f"group.{name}",)))
        if name in settings:
            layers = (SynonymEntry(name, settings[name], ConfigSource.GROUP), *layers)
        yield _entry(key, str(group_value(config, settings, name)), layers)


def client_metrics_entries(settings: Mapping[str, str]) -> Iterator[ConfigEntry]:
    for name, key in CLIENT_METRICS_KEYS.items():
        parsed = key.parse(settings[name]) if name in settings else key.default
        value = key.render(tuple(dict.fromkeys(parsed)) if isinstance(parsed, tuple) else parsed)
        own = (SynonymEntry(name, value, ConfigSource.CLIENT_METRICS),) if name in settings else ()
        yield _entry(key, value, own)


def cluster_entries(settings: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Dynamic defaults of all brokers; only keys that are set."""
    for name, text in settings.items():
        key, source = SERVER_KEYS.get(name), ConfigSource.DYNAMIC_DEFAULT_BROKER
        if key is None or key.sensitive:
            kind, doc = (0, "") if key is None else (key.type, key.doc)
            fixed = key is None or not key.dynamic
            hidden = (SynonymEntry(name, None, source),)
            yield ConfigEntry(name, None, source, source, fixed, True, kind, doc, hidden)
        else:
            yield _entry(key, text, (SynonymEntry(name, text, source),))
