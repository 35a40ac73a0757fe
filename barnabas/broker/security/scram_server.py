"""ScramServer: the server's side of SCRAM-SHA-256 and SCRAM-SHA-512.

Driven by: `sasl_session`, with the two messages of the client. Emits: the two answers; the identity.
Follows RFC 5802, RFC 7677, and KIP-48 for delegation tokens (extension `tokenauth=true`: the name is a token id, the password its HMAC).

Invariants: the server never learns the password and computes no iterations. An unknown user gets the same answers as a wrong password:
a salt that is derived from its name, and the refusal after its proof. Comparisons of secrets take constant time.

Deviations from Kafka: Kafka refuses an unknown user at the first message, so that anybody can ask which users exist; it does not
compare the channel binding `c=`, and it accepts a mandatory extension `m=`. All three are refused here as the RFC demands.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.security.server_mechanism import LoginFailed, LoginIdentity

__all__ = ["ITERATIONS_MIN", "SCRAM_HASHES", "ScramServer", "StoredCredential"]

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


class StoredCredential(NamedTuple):
    """What the server keeps of a password. Its representation shows no key.

    Attributes:
        identity: who proves to know the password.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    identity: LoginIdentity

    def __repr__(self) -> str:
        return f"StoredCredential(iterations={self.iterations})"


class ScramServer:
    """One exchange.

    Args:
        mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
        find: the credential of a user name, or of a delegation token if the second argument is true; None if there is none.
        unknown: the salt and the iterations that a user without credential is given.
        nonce: the server's part of the nonce: printable ASCII without comma, new for every exchange.
    """

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str, bool], StoredCredential | None],
        unknown: Callable[[str], tuple[bytes, int]],
        nonce: str,
    ) -> None:
        self._hash = SCRAM_HASHES[mechanism]
        self._find = find
        self._unknown = unknown
        self._server_nonce = nonce
        self._credential: StoredCredential | None = None
        self._nonce = ""  # of both sides; empty before the first message
        self._exchanged = ""  # the first message and its answer
        self._binding = b""
        self.identity: LoginIdentity | None = None

    def work(self, token: bytes) -> None:
        """None: a step is quick."""

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Answers the first or the final message. Raises LoginFailed."""
        try:
            text = token.decode() if len(token) <= MESSAGE_BYTES_MAX else ""
        except UnicodeDecodeError:
            text = ""
        return self._on_final(text) if self._nonce else self._on_first(text)

    def _on_first(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise LoginFailed(why="malformed first message")
        name = _unescaped(found["name"])
        authorize = _unescaped(found["authorize"] or "")
        extensions = dict(each.split("=", 1) for each in found["extensions"].split(",") if each)
        by_token = extensions.get("tokenauth", "").lower() == "true"
        credential = self._credential = self._find(name, by_token)
        if authorize and authorize != name:
            raise LoginFailed(OTHER_NAME)
        salt, iterations = (credential.salt, credential.iterations) if credential is not None else self._unknown(name)
        self._nonce = found["nonce"] + self._server_nonce
        self._binding = text[: found.start("bare")].encode()
        answer = f"r={self._nonce},s={b64encode(salt).decode()},i={iterations}"
        self._exchanged = f"{found['bare']},{answer}"
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


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise LoginFailed(why="malformed base64") from None
