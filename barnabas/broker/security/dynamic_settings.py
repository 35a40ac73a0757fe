"""Checks of altered security settings: usable stores, and listeners that clients can log in to.
Kafka checks stores only: unusable login modules or mechanisms would lock out administrators, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.sasl_settings import ENABLED_MECHANISMS, JAAS_CONFIG
from barnabas.broker.config.table import is_per_broker
from barnabas.errors import BrokerError, ErrorCode
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.security.node_tls import NodeTls

_OF_LOGINS: Final = (ENABLED_MECHANISMS, JAAS_CONFIG, "sasl.mechanism.inter.broker.protocol")


def check_dynamic_settings(
    config: BrokerConfig, tls: NodeTls | None, changed: Iterable[str], layer: Mapping[str, str], *, default: bool
) -> Work:
    """Rejects settings that this node cannot use (BrokerError INVALID_REQUEST, as in Kafka).

    Args:
        changed: names of the settings that get a value.
        layer: all dynamic settings of this broker after the change.
        default: the change is for all brokers: the controller rejects login and listener settings.
    """
    names = [each for each in changed if not (default and is_per_broker(each))]
    tried = BrokerConfig(config.static, config.resolve)
    try:
        if not default:
            config.resolve(layer)
            tried.reconfigure(config.cluster_default, layer)
        tried.check_listener_names(names)
        if any(name.endswith(_OF_LOGINS) for name in names):
            tried.check_logins()
    except BrokerError as error:
        raise BrokerError(ErrorCode.INVALID_REQUEST, error.message) from None
    if tls is not None and not default:
        yield from tls.check(dict(layer))


def altered_mechanisms(config: BrokerConfig, name: str, value: str, *, append: bool) -> str:
    """sasl.enabled.mechanisms (or a listener's) after values are appended or removed; other keys' values unchanged."""
    if not name.endswith(ENABLED_MECHANISMS):
        return value
    listener = name.removeprefix("listener.name.").removesuffix(ENABLED_MECHANISMS).rstrip(".")
    now = config.listener_value(listener, ENABLED_MECHANISMS)
    before = [str(each) for each in now] if isinstance(now, tuple) else []
    changed = [each.strip() for each in value.split(",")]
    return ",".join(dict.fromkeys([*before, *changed]) if append else [each for each in before if each not in changed])
