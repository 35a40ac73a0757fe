"""Conversations about SASL, to be held with Kafka and with Barnabas: each returns what the broker answers and when it closes.

The broker has a listener for SASL with all mechanisms, and one (`reauth`) whose sessions last three seconds. Its users: `USERS` for
PLAIN, `SCRAM_USERS` for SCRAM.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from struct import pack, unpack
from typing import Any, Final

from barnabas.broker.config.sasl_settings import UNSECURED_HANDLER
from barnabas.protocol import registry
from tests.support.oracle.wire import Wire
from tests.support.requests import request_of

USERS: Final = {"alice": "alice-planted-secret", "bob": "bob-planted-secret"}
SCRAM_USERS: Final = {"alice": "alice-planted-scram", "bob": "bob-planted-scram"}
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PACKAGE: Final = "org.apache.kafka.common.security"
JAAS: Final = {
    "plain": f"{PACKAGE}.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    + ";",
    "scram-sha-256": f"{PACKAGE}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{PACKAGE}.scram.ScramLoginModule required;",
    "oauthbearer": f'{PACKAGE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";',
}
AGAIN: Final = "again: "  # begins the name of a conversation about re-authentication
THREADS: Final = 24
REAUTH_MS: Final = 3_000
LONG_MS: Final = 100_000  # lifetimes above it come from a token
DELAYED_S: Final = 0.08  # of connection.failed.authentication.delay.ms=100


def sasl_settings(*listeners: str) -> list[str]:
    """Settings of the listeners' logins; the last one has short sessions."""
    found = [f"sasl.enabled.mechanisms={','.join(MECHANISMS)}"]
    for name in (f"listener.name.{each.lower()}" for each in listeners):
        for mechanism, text in JAAS.items():
            found.append(f"{name}.{mechanism}.sasl.jaas.config={text}")
        found.append(f"{name}.oauthbearer.sasl.server.callback.handler.class={UNSECURED_HANDLER}")
    found.append(f"listener.name.{listeners[-1].lower()}.plain.connections.max.reauth.ms={REAUTH_MS}")
    return found


class SaslWire(Wire):
    """A connection that notes what the broker does.

    Attributes:
        said: the notes.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, timeout_s=60)
        self.said: list[Any] = []
        self.closes = False  # the broker is expected to: how long `end` waits for it

    def __enter__(self) -> SaslWire:
        return self

    def ask(self, request: Any, version: int, note: Callable[[Any], Any]) -> Any:
        """Sends a request and notes the answer, or the close."""
        began = time.monotonic()
        try:
            answer = self.call(request, version)
        except (ConnectionError, AssertionError) as error:
            self.said.append(("closed", time.monotonic() - began > DELAYED_S))
            return error
        noted = note(answer)
        self.said.append((*noted, "delayed") if time.monotonic() - began > DELAYED_S else noted)
        return answer

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(
            request_of("SaslHandshake", mechanism=mechanism),
            version,
            lambda answer: ("handshake", answer.error_code, sorted(answer.mechanisms)),
        )

    def token(self, token: bytes, version: int = 2, show: bool = False) -> bytes:
        """One SaslAuthenticate; returns the broker's token."""
        answer = self.ask(
            request_of("SaslAuthenticate", auth_bytes=token),
            version,
            lambda answer: (
                "token",
                answer.error_code,
                answer.error_message,
                answer.auth_bytes.decode() if show else len(answer.auth_bytes) > 0,
                answer.session_lifetime_ms if answer.session_lifetime_ms < LONG_MS else "long",
            ),
        )
        return bytes(getattr(answer, "auth_bytes", b""))

    def metadata(self) -> Any:
        return self.ask(request_of("Metadata", topics=[]), 5, lambda answer: ("metadata", len(answer.brokers)))

    def api_versions(self, version: int = 3) -> Any:
        request = request_of("ApiVersions", client_software_name="x", client_software_version="1")
        if version > 4:
            return self.unknown_api_versions(version)
        return self.ask(request, version, lambda answer: ("versions", answer.error_code, len(answer.api_keys) > 5))

    def unknown_api_versions(self, version: int) -> None:
        """ApiVersions in a version that nobody serves is answered in version 0."""
        frame = pack(">hhih", registry.API_VERSIONS_KEY, version, 77, -1) + b"\0" + b"\2x\0021\0"
        try:
            self.frame(frame)
            answer = self.next_frame()
            self.said.append(("versions", *unpack(">ih", answer[:6])))
        except ConnectionError:
            self.said.append(("closed", False))

    def frame(self, body: bytes) -> None:
        self.socket.sendall(pack(">i", len(body)) + body)

    def raw_token(self, token: bytes) -> bytes:
        """A token without a request header, after SaslHandshake 0."""
        self.frame(token)
        try:
            answer = self.next_frame()
            self.said.append(("raw", len(answer) > 0))
            return answer
        except ConnectionError:
            self.said.append(("closed",))
            return b""

    def end(self) -> None:
        """Notes whether the broker has closed."""
        self.socket.settimeout(30 if self.closes else 0.5)
        try:
            self.said.append("closed" if self.socket.recv(1) == b"" else "more bytes")
        except ConnectionError:
            self.said.append("closed")
        except TimeoutError:
            self.said.append("open")


def plain(user: str, password: str, authorize: str = "") -> bytes:
    return f"{authorize}\0{user}\0{password}".encode()


ALICE = plain("alice", USERS["alice"])
BOB = plain("bob", USERS["bob"])


class Scram:
    """The client of RFC 5802, whose messages can be wrong.

    Args:
        gs2: the header before the first message.
        change_first, change_final: what is done to the messages before they are sent.
    """

    def __init__(
        self,
        user: str,
        password: str,
        hash_name: str = "sha256",
        *,
        gs2: str = "n,,",
        extension: str = "",
        change_first: Callable[[str], str] = lambda text: text,
        change_final: Callable[[str], str] = lambda text: text,
        change_proof: Callable[[bytes], bytes] = lambda proof: proof,
    ) -> None:
        self.password = password.encode()
        self.hash_name = hash_name
        self.gs2 = gs2
        self.bare = change_first(f"n={user},r=clientnonce0123456789{extension}")
        self.change_final = change_final
        self.change_proof = change_proof

    def first(self) -> bytes:
        return (self.gs2 + self.bare).encode()

    def final(self, challenge: bytes) -> bytes:
        text = challenge.decode()
        if not text.startswith("r="):
            return b"c=biws,r=x,p=eA=="
        fields = dict(each.split("=", 1) for each in text.split(","))
        salted = hashlib.pbkdf2_hmac(self.hash_name, self.password, base64.b64decode(fields["s"]), int(fields["i"]))
        client_key = hmac.digest(salted, b"Client Key", self.hash_name)
        stored_key = hashlib.new(self.hash_name, client_key).digest()
        binding = base64.b64encode(self.gs2.encode()).decode()
        without_proof = self.change_final(f"c={binding},r={fields['r']}")
        auth_message = f"{self.bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, auth_message, self.hash_name)
        proof = self.change_proof(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


Conversation = Callable[[SaslWire], None]
Step = Callable[[SaslWire], Any]


def scram(
    user: str = "alice",
    password: str = SCRAM_USERS["alice"],
    *,
    mechanism: str = "SCRAM-SHA-256",
    version: int = 2,
    **changes: Any,
) -> Conversation:
    """A login; `changes` are those of Scram."""

    def talk(wire: SaslWire) -> None:
        client = Scram(user, password, "sha512" if mechanism == "SCRAM-SHA-512" else "sha256", **changes)
        wire.handshake(mechanism)
        challenge = wire.token(client.first(), version)
        if challenge:
            wire.token(client.final(challenge), version)
        wire.end()

    return talk


def unsecured(claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
    """An unsecured JWT."""
    parts = ({"alg": "none"} if header is None else header, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts) + "."


def bearer(token: str, gs2: str = "n,,", extensions: str = "") -> bytes:
    return f"{gs2}\1auth=Bearer {token}{extensions}\1\1".encode()


CONVERSATIONS: dict[str, Conversation] = {}
REAUTH_CONVERSATIONS: dict[str, Conversation] = {}


def _plain_token(token: bytes, version: int = 2) -> Conversation:
    def talk(wire: SaslWire) -> None:
        wire.handshake("PLAIN")
        wire.token(token, version)
        wire.end()

    return talk


def handshake(mechanism: str, version: int = 1) -> Step:
    return lambda wire: wire.handshake(mechanism, version)


def token(data: bytes, version: int = 2) -> Step:
    return lambda wire: wire.token(data, version)


def raw_token(data: bytes) -> Step:
    return lambda wire: wire.raw_token(data)


def _steps(*steps: Step) -> Conversation:
    def talk(wire: SaslWire) -> None:
        for step in steps:
            step(wire)
            if wire.said and wire.said[-1][0] == "closed":
                return
        wire.end()

    return talk


def _bearer(token: bytes, *more: bytes) -> Conversation:
    def talk(wire: SaslWire) -> None:
        wire.handshake("OAUTHBEARER")
        answer = wire.token(token, show=True)
        for each in more:
            if answer:
                answer = wire.token(each, show=True)
        wire.end()

    return talk


W = SaslWire
CONVERSATIONS |= {
    "unknown mechanism": _steps(handshake("NOPE")),
    "unknown mechanism, version 0": _steps(handshake("NOPE", 0)),
    "mechanism in lower case": _steps(handshake("plain")),
    "empty mechanism": _steps(handshake("")),
    "a request before authentication": _steps(W.metadata),
    "a request after ApiVersions": _steps(W.api_versions, W.metadata),
    "a token before the handshake": _steps(token(ALICE)),
    "a request after the handshake": _steps(handshake("PLAIN"), W.metadata),
    "ApiVersions after the handshake": _steps(handshake("PLAIN"), W.api_versions),
    "two handshakes": _steps(handshake("PLAIN"), handshake("SCRAM-SHA-256")),
    "ApiVersions twice": _steps(W.api_versions, W.api_versions),
    "ApiVersions of a higher version": _steps(
        lambda w: w.api_versions(99),
        W.api_versions,
        handshake("PLAIN"),
        token(ALICE),
        W.metadata,
    ),
    "PLAIN": _steps(W.api_versions, handshake("PLAIN"), token(ALICE), W.metadata),
    "PLAIN, version 0": _steps(handshake("PLAIN"), token(ALICE, 0), W.metadata),
    "PLAIN, version 1": _steps(handshake("PLAIN"), token(ALICE, 1), W.api_versions),
    "PLAIN with its own name": _plain_token(plain("alice", USERS["alice"], "alice")),
    "PLAIN: wrong password": _plain_token(plain("alice", "wrong")),
    "PLAIN: wrong password, version 0": _plain_token(plain("alice", "wrong"), 0),
    "PLAIN: unknown user": _plain_token(plain("nobody", "wrong")),
    "PLAIN: other name": _plain_token(plain("alice", USERS["alice"], "bob")),
    "PLAIN: other name, wrong password": _plain_token(plain("alice", "wrong", "bob")),
    "PLAIN: empty token": _plain_token(b""),
    "PLAIN: no separator": _plain_token(b"alice"),
    "PLAIN: one separator": _plain_token(b"alice\0secret"),
    "PLAIN: three separators": _plain_token(b"\0alice\0" + USERS["alice"].encode() + b"\0"),
    "PLAIN: no user": _plain_token(plain("", "x")),
    "PLAIN: no password": _plain_token(plain("alice", "")),
    "PLAIN: no UTF-8": _plain_token(b"\0\xff\xfe\0\xff"),
    "PLAIN: long": _plain_token(plain("a" * 100_000, "x")),
    "a token after authentication": _steps(handshake("PLAIN"), token(ALICE), token(ALICE), W.metadata),
    "a handshake after authentication": _steps(handshake("PLAIN"), token(ALICE), handshake("PLAIN"), W.metadata),
    "raw PLAIN": _steps(handshake("PLAIN", 0), raw_token(ALICE), W.metadata),
    "raw PLAIN: wrong password": _steps(handshake("PLAIN", 0), raw_token(plain("alice", "wrong"))),
    "raw PLAIN: SaslAuthenticate": _steps(handshake("PLAIN", 0), token(ALICE)),
    "raw bytes": _steps(raw_token(b"\x60\x82\x02\x00\x06\x09\x2a\x86\x48")),
    "raw SCRAM": _steps(
        handshake("SCRAM-SHA-256", 0),
        lambda w: _raw_scram(w, Scram("alice", SCRAM_USERS["alice"])),
        W.metadata,
    ),
    "oversized token": _plain_token(plain("alice", "x" * 524_288)),
    "a long first request": _steps(handshake("x" * 3_000)),
    "SCRAM-SHA-256": scram(),
    "SCRAM-SHA-256, version 0": scram(version=0),
    "SCRAM-SHA-512": scram(mechanism="SCRAM-SHA-512"),
    "SCRAM: wrong password": scram(password="wrong"),
    "SCRAM: unknown user": scram("nobody", "wrong"),
    "SCRAM: user without this mechanism": scram("bob", SCRAM_USERS["bob"], mechanism="SCRAM-SHA-512"),
    "SCRAM: y": scram(gs2="y,,"),
    "SCRAM: channel binding": scram(gs2="p=tls-unique,,"),
    "SCRAM: own name": scram(gs2="n,a=alice,"),
    "SCRAM: other name": scram(gs2="n,a=bob,"),
    "SCRAM: extension": scram(extension=",x=y"),
    "SCRAM: token": scram(extension=",tokenauth=true"),
    "SCRAM: no token": scram(extension=",tokenauth=false"),
    "SCRAM: mandatory extension": scram(change_first=lambda text: "m=x," + text),
    "SCRAM: no nonce": scram(password="", change_first=lambda text: "n=alice"),
    "SCRAM: empty name": scram("", ""),
    "SCRAM: escaped name": scram("al=3Dice", "x"),
    "SCRAM: wrongly escaped name": scram("al=ice", "x"),
    "SCRAM: no UTF-8": _steps(handshake("SCRAM-SHA-256"), token(b"n,,n=\xff,r=abc")),
    "SCRAM: empty token": _steps(handshake("SCRAM-SHA-256"), token(b"")),
    "SCRAM: wrong nonce": scram(change_final=lambda text: text + "x"),
    # librdkafka before 2.6.1 sends this; Kafka accepted it before 3.7.2 and 3.8.1 (CVE-2024-56128).
    "SCRAM: the client's nonce twice": scram(change_final=lambda text: text.replace(",r=", ",r=clientnonce0123456789")),
    "SCRAM: wrong binding": scram(change_final=lambda text: text.replace("biws", "eSws")),
    "SCRAM: short proof": scram(change_proof=lambda proof: proof[:5]),
    "SCRAM: long proof": scram(change_proof=lambda proof: proof + b"x"),
    "SCRAM: final extension": scram(change_final=lambda text: text + ",x=y"),
    "OAUTHBEARER": _bearer(bearer(unsecured({"sub": "carol", "exp": time.time() + 3_600, "iat": time.time()}))),
    "OAUTHBEARER: expired": _bearer(bearer(unsecured({"sub": "carol", "exp": 1000, "iat": 999})), b"\1"),
    "OAUTHBEARER: no expiry": _bearer(bearer(unsecured({"sub": "carol", "iat": 999})), b"\1"),
    "OAUTHBEARER: no name": _bearer(bearer(unsecured({"exp": time.time() + 3_600, "iat": 999})), b"\1"),
    "OAUTHBEARER: other name": _bearer(
        bearer(unsecured({"sub": "carol", "exp": time.time() + 3_600, "iat": 9}), "n,a=x,"), b"\1"
    ),
    "OAUTHBEARER: no token": _bearer(bearer("abc"), b"\1"),
    "OAUTHBEARER: signed": _bearer(
        bearer(unsecured({"sub": "carol", "exp": time.time() + 3_600}, {"alg": "RS256"}) + "c2ln"), b"\1"
    ),
    "OAUTHBEARER: malformed": _bearer(b"n,,auth=Bearer x\1\1", b"\1"),
    "OAUTHBEARER: empty": _bearer(b"", b"\1"),
    "OAUTHBEARER: extension": _bearer(
        bearer(unsecured({"sub": "carol", "exp": time.time() + 3_600, "iat": 9}), extensions="\1key=value")
    ),
    "OAUTHBEARER: extension auth": _bearer(
        bearer(unsecured({"sub": "carol", "exp": time.time() + 3_600, "iat": 9}), extensions="\1auth=value")
    ),
    "OAUTHBEARER: no acknowledgement": _bearer(bearer(unsecured({"sub": "carol", "exp": 1000, "iat": 999})), b"x"),
}


# Where Barnabas answers otherwise: what it answers in place of the last answers of Kafka, and why.
NOT_DECODED: Final = [["closed", False]]  # no other request is decoded before the login
REFUSED_256: Final = [
    "token",
    58,
    "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256",
    False,
    0,
    "delayed",
]
REFUSED_512: Final = [REFUSED_256[0], REFUSED_256[1], str(REFUSED_256[2]).replace("256", "512"), *REFUSED_256[3:]]
CHALLENGE: Final = ["token", 0, "", True, 0]
DEVIATIONS: Final[dict[str, list[Any]]] = {
    "a request after the handshake": NOT_DECODED,
    "again: a request instead of a token": NOT_DECODED,
    "oversized token": [["closed", False], "closed"],  # without a delay, as every other frame that is too large
    "PLAIN: long": [["closed", False], "closed"],
    # An unknown user cannot be told from a wrong password.
    "SCRAM: unknown user": [CHALLENGE, REFUSED_256, "closed"],
    "SCRAM: escaped name": [CHALLENGE, REFUSED_256, "closed"],
    "SCRAM: token": [CHALLENGE, REFUSED_256, "closed"],
    "SCRAM: user without this mechanism": [CHALLENGE, REFUSED_512, "closed"],
    # RFC 5802: refused at once; Kafka refuses the proof.
    "SCRAM: mandatory extension": [REFUSED_256, "closed"],
    # RFC 5802: the binding is compared.
    "SCRAM: wrong binding": [CHALLENGE, REFUSED_256, "closed"],
    # Kafka fails and closes without an answer.
    "SCRAM: short proof": [CHALLENGE, REFUSED_256, "closed"],
    "SCRAM: long proof": [CHALLENGE, REFUSED_256, "closed"],
}


def held(
    address: str, again: str, expected: Mapping[str, list[Any]] | None = None, names: Collection[str] | None = None
) -> dict[str, Any]:
    """Holds conversations (`names`; None: all) at once and returns what the broker did.

    Args:
        address, again: of the listener, and of the listener with short sessions.
        expected: what it should do: a connection that should be closed has more time for it.
    """

    def hold(conversation: tuple[str, Conversation]) -> tuple[str, Any]:
        name, talk = conversation
        with SaslWire(again if name.startswith(AGAIN) else address) as wire:
            wire.closes = (expected or {}).get(name, ["open"])[-1] != "open"
            talk(wire)
            return name, json.loads(json.dumps(wire.said))

    every = {**CONVERSATIONS, **{AGAIN + name: talk for name, talk in REAUTH_CONVERSATIONS.items()}}
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(pool.map(hold, [each for each in every.items() if names is None or each[0] in names]))


def _raw_scram(wire: SaslWire, client: Scram) -> None:
    challenge = wire.raw_token(client.first())
    wire.raw_token(client.final(challenge))


def _login(wire: SaslWire) -> None:
    wire.handshake("PLAIN")
    wire.token(ALICE)


def _pause(seconds: float) -> Step:
    return lambda wire: time.sleep(seconds)


REAUTH_CONVERSATIONS |= {
    "again at once": _steps(_login, handshake("PLAIN"), token(ALICE), W.metadata),
    "again": _steps(_login, _pause(1.2), _login, W.metadata),
    "again twice": _steps(_login, _pause(1.2), _login, _login, W.metadata),
    "again in time": _steps(_login, _pause(2), _login, _pause(1.5), W.metadata),
    "another user": _steps(_login, _pause(1.2), handshake("PLAIN"), token(BOB), W.metadata),
    "wrong password": _steps(_login, _pause(1.2), handshake("PLAIN"), token(plain("alice", "wrong")), W.metadata),
    "another mechanism": _steps(
        _login,
        _pause(1.2),
        handshake("SCRAM-SHA-256"),
        token(Scram("alice", SCRAM_USERS["alice"]).first()),
        W.metadata,
    ),
    "an unknown mechanism": _steps(_login, _pause(1.2), handshake("NOPE"), W.metadata),
    "a request instead of a token": _steps(_login, _pause(1.2), handshake("PLAIN"), W.metadata, W.metadata),
    "ApiVersions instead of a token": _steps(_login, _pause(1.2), handshake("PLAIN"), W.api_versions),
    "version 0": _steps(_login, _pause(1.2), handshake("PLAIN", 0), raw_token(ALICE), W.metadata),
    "a token without a handshake": _steps(_login, _pause(1.2), token(ALICE), W.metadata),
    "expired": _steps(_login, _pause(3.2), W.metadata),
    "expired, ApiVersions": _steps(_login, _pause(3.2), W.api_versions),
    "expired, handshake": _steps(_login, _pause(3.2), _login, W.metadata),
    "expired, silent": _steps(_login, _pause(3.2)),
    "version 0 first": _steps(handshake("PLAIN"), token(ALICE, 0), _pause(3.2), W.metadata),
    "raw first": _steps(handshake("PLAIN", 0), raw_token(ALICE), _pause(3.2), W.metadata),
    "SCRAM has no limit": _steps(
        handshake("SCRAM-SHA-256"),
        lambda w: w.token((lambda client: client.final(w.token(client.first())))(Scram("alice", SCRAM_USERS["alice"]))),
        W.metadata,
    ),
}
