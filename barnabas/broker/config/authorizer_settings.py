"""The settings of the authorizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from barnabas.broker.api.principal import ANONYMOUS
from barnabas.broker.config.key import invalid_config
from barnabas.broker.config.table import AUTHORIZER_CLASS

NAME, SUPER_USERS, ALLOW = "authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"
EXAMPLE: Final = f"{NAME}={AUTHORIZER_CLASS} and {SUPER_USERS}=User:admin;User:broker"


class AuthorizerSettings(NamedTuple):
    """super.users as texts ("User:admin"), and allow.everyone.if.no.acl.found."""

    super_users: frozenset[str] = frozenset()
    allow_if_no_acl: bool = False


def authorizer_settings(static: Mapping[str, str], *, controller: bool) -> AuthorizerSettings | None:
    """None without an authorizer. `controller`: the node is a controller, to which brokers must connect before any ACL exists.

    Raises BrokerError(INVALID_CONFIG): a wrong value, settings without an authorizer, or no super user and default deny: brokers could not
    register.
    """
    name = static.get(NAME, "").strip()
    if not name:
        for key in (SUPER_USERS, ALLOW):
            text = static.get(key, "").strip()
            if text and (key, text.lower()) != (ALLOW, "true"):  # which promises no protection
                reason = (
                    f"without {NAME} every client may do everything: write {NAME}={AUTHORIZER_CLASS}, or remove {key}"
                )
                raise invalid_config(key, text, reason)
        return None
    if name != AUTHORIZER_CLASS:
        raise invalid_config(NAME, name, f"only Kafka's {AUTHORIZER_CLASS} is served")
    users = [each for part in static.get(SUPER_USERS, "").split(";") if (each := part.strip())]
    for user in users:
        if ",User:" in user.replace(" ", "") or " User:" in user:
            raise invalid_config(SUPER_USERS, user, "semicolons separate principals: write User:admin;User:broker")
        if ":" not in user[1:]:
            raise invalid_config(SUPER_USERS, user, "write TYPE:NAME, e.g. User:admin, separated by semicolons")
        if not user.startswith("User:") or user in ("User:", "User:*"):
            raise invalid_config(SUPER_USERS, user, "no client has this principal: write User:NAME for each super user")
    allow_if_no_acl = static.get(ALLOW, "").strip().lower() == "true"
    if controller and not users and not allow_if_no_acl:
        raise invalid_config(SUPER_USERS, "", f"a controller needs super users, else no broker can register: {EXAMPLE}")
    return AuthorizerSettings(frozenset(users), allow_if_no_acl)


def check_nodes(settings: AuthorizerSettings, protocols: Iterable[str]) -> None:
    """Raises BrokerError(INVALID_CONFIG) if nodes cannot authenticate and are no super users. `protocols`: security protocols between nodes."""
    if "PLAINTEXT" in protocols and str(ANONYMOUS) not in settings.super_users:
        users = ";".join((str(ANONYMOUS), *sorted(settings.super_users)))
        raise invalid_config(
            SUPER_USERS,
            ";".join(sorted(settings.super_users)),
            "nodes connect to each other over PLAINTEXT, where they are User:ANONYMOUS and could not even register; set "
            f"security.inter.broker.protocol and the controller listener to a protocol with authentication and name the nodes in "
            f"super.users, or write {NAME}={AUTHORIZER_CLASS} and {SUPER_USERS}={users}",
        )
