"""ScramServer: SCRAM server exchange (RFC 5802, RFC 7677; KIP-48: `tokenauth=true`, a token id and its HMAC).
Unlike Kafka it hides whether a user exists, checks the channel binding `c=`, and rejects mandatory extensions `m=`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.sasl.server_mechanism import LoginFailed, LoginIdentity

SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4_096
MESSAGE_BYTES_MAX: Final = 8_192  # of one message of the client; ours have less than 200
OTHER_NAME: Final = "Authentication failed: Client requested an authorization id that is different from username"

_NAME: Final = r"(?:[^\0,=]|=2C|=3D)+"
_PRINTABLE: Final = r"[\x21-\x2B\x2D-\x7E]+"
_EXTENSIONS: Final = r"(?P<extensions>(?:,[A-Za-z]+=[^\0,]+)*)"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorize>{_NAME}))?,(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE})),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


# A number of 130 random bits in base 36: the salts of Kafka's tools and clients (ScramFormatter.secureRandomBytes).
KAFKA_SALT_BITS: Final = 130
_KAFKA_SALT: Final = re.compile(rb"[0-9a-z]{22,26}")
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


def salt_size(salt: bytes) -> int | None:
    """Length of a salt; None for one of Kafka's tools, whose length is random."""
    is_kafkas = _KAFKA_SALT.fullmatch(salt) and int(salt, 36) < 1 << KAFKA_SALT_BITS
    return None if is_kafkas else len(salt)


def made_salt(size: int | None, seed: bytes) -> bytes:
    """Salt from a secret seed, of a size that `salt_size` has returned."""
    stream = hashlib.shake_256(seed)
    if size is not None:
        return stream.digest(size)
    number = int.from_bytes(stream.digest(32)) >> (256 - KAFKA_SALT_BITS)
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))


def token_hmac(secret: str, token_id: str) -> bytes:
    """The password of a delegation token: its holder proves by SCRAM to know it."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


class StoredCredential(NamedTuple):
    """A stored password credential and its `identity`. Its representation shows no key."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    identity: LoginIdentity

    def __repr__(self) -> str:
        return f"StoredCredential(iterations={self.iterations})"


class ScramServer:
    """One exchange.

    An unknown user gets a salt and iterations like those of users, and the rejection after its proof. Comparisons take
    constant time.

    Args:
        mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
        find: credential of a user name, or of a delegation token if the second argument is true, or None.
        unknown: salt and iterations of a name without credential; same arguments.
        derive: slow computation of a delegation token's credential; None if done, or without such a token.
        nonce: the server's part: printable ASCII without comma, new for every exchange.
    """

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str, bool], StoredCredential | None],
        unknown: Callable[[str, bool], tuple[bytes, int]],
        derive: Callable[[str], Callable[[], None] | None],
        nonce: str,
    ) -> None:
        self._hash = SCRAM_HASHES[mechanism]
        self._find = find
        self._unknown = unknown
        self._derive = derive
        self._server_nonce = nonce
        self._credential: StoredCredential | None = None
        self._nonce = ""  # of both sides; empty before the first message
        self._exchanged = ""  # the first message and its response
        self._binding = b""
        self.identity: LoginIdentity | None = None

    def work(self, token: bytes) -> Callable[[], None] | None:
        try:
            first = None if self._nonce else _FirstMessage.of(_text(token))
        except LoginFailed:
            return None
        return None if first is None or not first.by_token else self._derive(first.name)

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Responds to the first or the final message. Raises LoginFailed."""
        text = _text(token)
        return self._on_final(text) if self._nonce else self._on_first(_FirstMessage.of(text))

    def _on_first(self, first: _FirstMessage) -> bytes:
        credential = self._credential = self._find(first.name, first.by_token)
        if first.authorize and first.authorize != first.name:
            raise LoginFailed(OTHER_NAME)
        # of a known name as well, which takes the same time
        salt, iterations = self._unknown(first.name, first.by_token)
        if credential is not None:
            salt, iterations = credential.salt, credential.iterations
        self._nonce = first.nonce + self._server_nonce
        self._binding = first.binding
        answer = f"r={self._nonce},s={b64encode(salt).decode()},i={iterations}"
        self._exchanged = f"{first.bare},{answer}"
        return answer.encode()

    def _on_final(self, text: str) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise LoginFailed(why="malformed final message")
        if not hmac.compare_digest(found["nonce"], self._nonce) or _decoded(found["binding"]) != self._binding:
            raise LoginFailed(why="other nonce or channel binding")
        proof = _decoded(found["proof"])
        credential = self._credential
        size = hashlib.new(self._hash).digest_size
        stored_key = credential.stored_key if credential is not None else bytes(size)
        server_key = credential.server_key if credential is not None else bytes(size)
        if len(proof) != size or len(stored_key) != size:
            raise LoginFailed(why="a proof of another length")
        auth_message = f"{self._exchanged},{found['without_proof']}".encode()
        signature = hmac.digest(stored_key, auth_message, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        proved = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), stored_key)
        if credential is None or not proved:
            raise LoginFailed(why="wrong password or unknown user")
        self.identity = credential.identity
        return b"v=" + b64encode(hmac.digest(server_key, auth_message, self._hash))


class _FirstMessage(NamedTuple):
    """The client's first message. `bare` is the part without the binding."""

    binding: bytes
    bare: str
    name: str
    authorize: str
    nonce: str
    by_token: bool

    @classmethod
    def of(cls, text: str) -> _FirstMessage:
        """Raises LoginFailed: malformed, or with a mandatory extension (RFC 5802: the exchange must fail)."""
        found = _FIRST.fullmatch(text)
        extensions = dict(each.split("=", 1) for each in found["extensions"].split(",") if each) if found else {}
        if found is None or "m" in extensions:
            raise LoginFailed(why="malformed first message")
        return cls(
            text[: found.start("bare")].encode(),
            found["bare"],
            _unescaped(found["name"]),
            _unescaped(found["authorize"] or ""),
            found["nonce"],
            extensions.get("tokenauth", "").lower() == "true",
        )


def _text(token: bytes) -> str:
    """Text of a message; empty if too long or no text."""
    try:
        return token.decode() if len(token) <= MESSAGE_BYTES_MAX else ""
    except UnicodeDecodeError:
        return ""


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise LoginFailed(why="malformed base64") from None
