"""Validation of listener prefixes. Kafka silently ignores `listener.name.clinet.ssl.client.auth=required`, which leaves the listener open."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from barnabas.broker.config.unserved_keys import LISTENER_KEYS
from barnabas.errors import BrokerError, ErrorCode

PREFIX: Final = "listener.name."
MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
_OF_MECHANISMS: Final = frozenset(key for key in LISTENER_KEYS if not key.startswith(("ssl.", "max.")))


def check_listener_prefixes(names: Iterable[str], listeners: Collection[str]) -> None:
    """Refuses settings of unknown listeners or in a spelling that is not read. `listeners`: all of the cluster that the node knows.

    Raises BrokerError(INVALID_CONFIG), with the name that works.
    """
    known = sorted((each.lower() for each in listeners), key=len, reverse=True)
    for name in names:
        if not name.startswith(PREFIX):
            continue
        rest = name[len(PREFIX) :]
        owner = next((each for each in known if rest.lower().startswith(f"{each}.")), None)
        if owner is None:
            raise _wrong(name, f"there is no such listener; listeners are {', '.join(sorted(known))}")
        key = rest[len(owner) + 1 :]
        mechanism, _, of_mechanism = key.partition(".")
        spelled = f"{owner}.{mechanism.lower()}.{of_mechanism}" if mechanism.lower() in MECHANISMS else f"{owner}.{key}"
        if rest != spelled:
            raise _wrong(name, f"names of listeners and mechanisms are lower case here: write {PREFIX}{spelled}")
        if key not in LISTENER_KEYS and not (mechanism in MECHANISMS and of_mechanism in _OF_MECHANISMS):
            raise _wrong(name, f"{key} is not read: write {PREFIX}{owner}.KEY or {PREFIX}{owner}.MECHANISM.KEY")


def _wrong(name: str, reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, f"Invalid configuration {name}: {reason}")
