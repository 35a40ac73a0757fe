"""Warnings about settings without effect: unknown keys, and keys that Barnabas does not use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from barnabas.broker.config.authorizer_settings import ALLOW, NAME
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.table import (
    OAUTH_LOGIN_KEYS,
    PROVIDERS,
    SERVER_KEYS,
    TOPIC_KEYS,
    UNSERVED_KEYS,
    server_key,
    unserved,
)
from barnabas.broker.image.image import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.broker.image.records import ConfigRecord, MetadataRecord

LIKENESS_MIN: Final = 0.75  # of difflib: below this two names have little in common
_PLACEHOLDER: Final = re.compile(r"\$\{[^{}:]+:[^{}]*\}")  # KIP-421, such as ${env:PASSWORD}
_OF_CLIENTS: Final = {
    "security.protocol": "listeners and listener.security.protocol.map set the protocol of each listener",
    "sasl.mechanism": "sasl.enabled.mechanisms sets the mechanisms of a node",
}
NAME_CHARS_MAX: Final = 200  # of a key, compared and shown: a comparison takes quadratic time


def remarks(config: BrokerConfig) -> list[str]:
    """One sentence for each setting without effect in the file or the command line, sorted by name."""
    found = []
    for name in sorted(config.static):
        reason = _why_without_effect(BROKER_RESOURCE, name)
        if reason is not None:
            found.append(f"setting '{name}' has no effect here: {reason}")
        elif server_key(name) is None and not name.startswith(PROVIDERS):
            found.append(_unknown(name))
    return found + _remarks_on_security(config)


def _remarks_on_security(config: BrokerConfig) -> list[str]:
    """Settings with another effect than they seem to have."""
    found = _remarks_on_own_logins(config)
    if ALLOW in config.static and not (config.get_str(NAME) or ""):
        found.append(f"setting '{ALLOW}' has no effect: without {NAME} every client may do everything")
    for name, text in sorted(config.static.items()):
        if server_key(name) is not None and _PLACEHOLDER.search(text):
            found.append(f"setting '{name}' has a placeholder that no provider replaces: the value is the text itself")
    return found


def _remarks_on_own_logins(config: BrokerConfig) -> list[str]:
    """Keys of this node's OAUTHBEARER tokens, although it uses that mechanism for no login."""
    keys = "sasl.mechanism.inter.broker.protocol", "sasl.mechanism.controller.protocol"
    if any((config.get_str(key) or "").upper() == "OAUTHBEARER" for key in keys):
        return []
    ends = tuple(OAUTH_LOGIN_KEYS)
    return [
        f"setting '{name}' has no effect: neither {' nor '.join(keys)} is OAUTHBEARER"
        for name in sorted(config.static)
        if name.endswith(ends)
    ]


def remarks_on_change(records: Iterable[MetadataRecord]) -> list[str]:
    """One sentence for each key without effect that the records set for topics or brokers."""
    resources: dict[tuple[int, str], list[str]] = {}
    for record in records:
        if isinstance(record, ConfigRecord) and record.value is not None:
            resources.setdefault((record.resource_type, record.name), []).append(record.resource_name)
    found = []
    for (kind, name), changed in resources.items():
        reason = _why_without_effect(kind, name)
        if reason is not None:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            what = "topic" if kind == TOPIC_RESOURCE else "broker"
            found.append(f"setting '{name}' of {what} '{changed[0]}'{more} has no effect here: {reason}")
    return found


def _why_without_effect(kind: int, name: str) -> str | None:
    if kind == TOPIC_RESOURCE:
        topic_key = TOPIC_KEYS.get(name)
        return None if topic_key is None else topic_key.no_effect
    if kind != BROKER_RESOURCE:
        return None  # every group key has an effect
    key, missing = server_key(name), unserved(name)
    return key.no_effect if key is not None else missing.reason if missing is not None else None


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    shown = name[:NAME_CHARS_MAX]
    text = f"unknown setting '{shown}' ignored"
    if name in _OF_CLIENTS:
        return f"{text}: it is a setting of clients; {_OF_CLIENTS[name]}"
    topic = TOPIC_KEYS.get(name)
    if topic is not None and topic.synonyms:
        return f"{text}: it is a topic's; brokers have '{topic.synonyms[0]}'"
    near = get_close_matches(shown, [*SERVER_KEYS, *UNSERVED_KEYS], n=1, cutoff=LIKENESS_MIN)
    return f"{text}; did you mean '{near[0]}'?" if near else text
