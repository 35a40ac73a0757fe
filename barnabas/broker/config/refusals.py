"""Settings that a node refuses because ignoring them would be dangerous: promises of what is not served, and misspelled listener prefixes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from barnabas.broker.config.key import invalid_config
from barnabas.broker.config.table import LISTENER_KEYS, UNSERVED_KEYS, unserved
from barnabas.errors import BrokerError, ErrorCode

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

_PREFIX: Final = "listener.name."
_MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
_OF_MECHANISMS: Final = frozenset(key for key in LISTENER_KEYS if not key.startswith(("ssl.", "max.")))


def refuse_unserved(settings: Mapping[str, str]) -> None:
    """Raises BrokerError(INVALID_CONFIG) for the first setting that must not be ignored, with its value and a remedy."""
    for name, text in settings.items():
        found = unserved(name)
        value = text.strip()
        asks = bool(value) and not (name in _SWITCHES and value.lower() == "false")
        if found is not None and found.refused and asks:
            # A name that Kafka does not have may be a secret's with a mistake in it.
            shown = value if name in UNSERVED_KEYS and not name.endswith(_SECRETS) else "[hidden]"
            raise invalid_config(name, shown, found.reason)


def check_listener_prefixes(names: Iterable[str], listeners: Collection[str]) -> None:
    """Refuses settings of unknown listeners or in a spelling that is not read. `listeners`: all of the cluster that the node knows.

    Kafka ignores `listener.name.clinet.ssl.client.auth=required`, which leaves the listener open. Raises BrokerError(INVALID_CONFIG), with
    the name that works.
    """
    known = sorted((each.lower() for each in listeners), key=len, reverse=True)
    for name in names:
        if not name.startswith(_PREFIX):
            continue
        rest = name[len(_PREFIX) :]
        owner = next((each for each in known if rest.lower().startswith(f"{each}.")), None)
        if owner is None:
            raise _wrong(name, f"there is no such listener; listeners are {', '.join(sorted(known))}")
        key = rest[len(owner) + 1 :]
        mechanism, _, of_mechanism = key.partition(".")
        spelled = (
            f"{owner}.{mechanism.lower()}.{of_mechanism}" if mechanism.lower() in _MECHANISMS else f"{owner}.{key}"
        )
        if rest != spelled:
            raise _wrong(name, f"names of listeners and mechanisms are lower case here: write {_PREFIX}{spelled}")
        if key not in LISTENER_KEYS and not (mechanism in _MECHANISMS and of_mechanism in _OF_MECHANISMS):
            raise _wrong(name, f"{key} is not read: write {_PREFIX}{owner}.KEY or {_PREFIX}{owner}.MECHANISM.KEY")


def _wrong(name: str, reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, f"Invalid configuration {name}: {reason}")
