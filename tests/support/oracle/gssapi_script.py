"""Conversations about GSSAPI, to be held with Kafka and with Barnabas in one Kerberos realm (`tests/support/security/kdc.py`).

The broker has three listeners for GSSAPI: SASL; AGAIN, whose sessions last three seconds; NAMED, with a rule for services only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from barnabas.protocol.kerberos import GssContext
from barnabas.runtime.kerberos import KerberosInitiator
from tests.support.oracle.sasl_script import SaslWire
from tests.support.requests import request_of
from tests.support.security.kdc import REALM, SERVICE, Kdc

LISTENERS: Final = ("SASL", "AGAIN", "NAMED")
REAUTH_MS: Final = 3_000
NO_LAYER: Final = bytes((1, 0, 0, 0))


def gssapi_settings(kdc: Kdc) -> dict[str, str]:
    """Settings of the listeners' logins."""
    return {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        **{f"listener.name.{name.lower()}.gssapi.sasl.jaas.config": kdc.broker_jaas for name in LISTENERS},
        "listener.name.again.gssapi.connections.max.reauth.ms": str(REAUTH_MS),
        "listener.name.named.sasl.kerberos.principal.to.local.rules": "RULE:[2:$1-$2]/U",
        "delegation.token.secret.key": "planted-token-secret",
    }


class GssWire(SaslWire):
    """A connection of a client with tickets."""

    def __init__(self, address: str, kdc: Kdc) -> None:
        super().__init__(address)
        self.kdc = kdc

    def __enter__(self) -> GssWire:
        return self

    def context(self, name: str = "alice", host: str = "localhost") -> GssContext:
        """A user at a service."""
        initiator = KerberosInitiator("kafka", principal=f"{name}@{REALM}", keytab=self.kdc.keytab_of(name))
        return initiator.context(host)

    def offered(self, context: GssContext) -> bool:
        """The messages until the broker offers its layers."""
        self.handshake("GSSAPI")
        answer = self.token(context.step(b""))
        while answer and not context.complete:
            answer = self.token(context.step(answer))
        if answer:
            self.said.append(("offer", context.unwrap(answer)[0]))
        return bool(answer)

    def login(self, name: str = "alice", host: str = "localhost", final: bytes = NO_LAYER) -> None:
        """A whole login."""
        context = self.context(name, host)
        if self.offered(context):
            self.token(context.wrap(final))

    def whoami(self) -> None:
        """Who the broker takes the client for: the owner of a delegation token."""
        self.ask(
            request_of("CreateDelegationToken", max_lifetime_ms=60_000),
            2,
            lambda answer: ("is", answer.error_code, answer.principal_name),
        )


Conversation = Callable[[GssWire], None]


def _login(name: str = "alice", final: bytes = NO_LAYER) -> Conversation:
    def talk(wire: GssWire) -> None:
        wire.login(name, final=final)
        if wire.said[-1][:2] == ("token", 0):
            wire.whoami()
        wire.end()

    return talk


def _first(token: bytes) -> Conversation:
    def talk(wire: GssWire) -> None:
        wire.handshake("GSSAPI")
        wire.token(token)
        wire.end()

    return talk


def _raw_final(make: Callable[[GssContext], bytes]) -> Conversation:
    def talk(wire: GssWire) -> None:
        context = wire.context()
        if wire.offered(context):
            wire.token(make(context))
        wire.end()

    return talk


def _second(token: bytes) -> Conversation:
    def talk(wire: GssWire) -> None:
        wire.handshake("GSSAPI")
        wire.token(wire.context().step(b""))
        wire.token(token)
        wire.end()

    return talk


def _changed_first(wire: GssWire) -> None:
    token = bytearray(wire.context().step(b""))
    token[-5] ^= 1
    _first(bytes(token))(wire)


def _other_service(wire: GssWire) -> None:
    _first(wire.context(host="other").step(b""))(wire)


def _skewed(wire: GssWire) -> None:
    cache = wire.kdc.shifted(wire.kdc.tickets("bob", service=SERVICE), 1_800)
    _first(KerberosInitiator("kafka", ticket_cache=cache).context("localhost").step(b""))(wire)


def _replayed(wire: GssWire) -> None:
    token = wire.context().step(b"")
    with GssWire(wire.bootstrap, wire.kdc) as other:
        other.handshake("GSSAPI")
        other.token(token)
    wire.handshake("GSSAPI")
    wire.token(token)


def _two_messages_in_one(wire: GssWire) -> None:
    """A client that answers the context's last message and the offer without having read it."""
    _second(b"more")(wire)


def _raw_tokens(wire: GssWire) -> None:
    context = wire.context()
    wire.handshake("GSSAPI", 0)
    answer = wire.raw_token(context.step(b""))
    while answer and not context.complete:
        answer = wire.raw_token(context.step(answer))
    wire.said.append(("offer", context.unwrap(answer)[0]))
    wire.frame(context.wrap(NO_LAYER))
    wire.whoami()
    wire.end()


def _twice(wire: GssWire) -> None:
    wire.login()
    wire.token(b"x")
    wire.whoami()
    wire.end()


def _again(name: str) -> Conversation:
    def talk(wire: GssWire) -> None:
        wire.login()
        wire.whoami()
        wire.login(name)
        wire.end()

    return talk


CONVERSATIONS: Final[dict[str, Conversation]] = {
    "login": _login(),
    "login of a service": _login("kafka/other"),
    "an authorization id": _login(final=NO_LAYER + b"alice"),
    "the authorization id of another": _login(final=NO_LAYER + b"bob"),
    "a long authorization id": _login(final=NO_LAYER + b"x" * 10_000),
    "a size without a layer": _login(final=b"\1\xff\xff\xff"),
    "several layers": _login(final=b"\7\0\0\0"),
    "layer integrity": _login(final=b"\2\0\0\0"),
    "layer privacy": _login(final=b"\4\0\0\0"),
    "no layer at all": _login(final=b"\0\0\0\0"),
    "an empty first message": _first(b""),
    "a first message of noise": _first(b"\x60\x10noise noise noise"),
    "a damaged ticket": _changed_first,
    "a ticket for another service": _other_service,
    "a clock that is ahead": _skewed,
    "a first message that was sent before": _replayed,
    "no empty message after the context": _two_messages_in_one,
    "a last message of noise": _raw_final(lambda context: b"noise"),
    "a last message without a signature": _raw_final(lambda context: NO_LAYER),
    "an empty last message": _raw_final(lambda context: b""),
    "a token after the login": _twice,
    "tokens without a header": _raw_tokens,
}
ELSEWHERE: Final[dict[str, tuple[str, Conversation]]] = {
    "again: the same client": ("AGAIN", _again("alice")),
    "again: another client": ("AGAIN", _again("bob")),
    "named: a service": ("NAMED", _login("kafka/other")),
    "named: a user without a rule": ("NAMED", _login("alice")),
}
# Kafka completes the login and then closes without an answer; here the client learns that it is refused.
DEVIATIONS: Final[dict[str, list[Any]]] = {
    "named: a user without a rule": [
        ["handshake", 0, ["GSSAPI"]],
        ["token", 0, "", True, 0],
        ["token", 0, "", True, 0],
        ["offer", 1],
        [
            "token",
            58,
            "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI",
            False,
            0,
            "delayed",
        ],
        "closed",
    ],
}


def held(
    addresses: dict[str, str],
    kdc: Kdc,
    expected: Mapping[str, list[Any]] | None = None,
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """Holds conversations and returns what the broker did.

    Args:
        addresses: of the listeners.
        expected: what it should do: a connection that should be closed has more time for it.
        names: of the conversations; None: all.
    """

    def hold(case: tuple[str, str, Conversation]) -> tuple[str, Any]:
        name, listener, talk = case
        with GssWire(addresses[listener], kdc) as wire:
            wire.closes = (expected or {}).get(name, ["open"])[-1] != "open"
            talk(wire)
            return name, wire.said

    cases = [(name, "SASL", talk) for name, talk in CONVERSATIONS.items()]
    cases += [(name, *where) for name, where in ELSEWHERE.items()]
    with ThreadPoolExecutor(8) as pool:
        found = dict(pool.map(hold, [each for each in cases if names is None or each[0] in names]))
    said: dict[str, Any] = json.loads(json.dumps(found))
    return said
