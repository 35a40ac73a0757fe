"""An identity server of the tests: a token endpoint and a document of signing keys over http or https, which fails on command."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey

CLIENT: Final = "carol"
SECRET: Final = "planted-client-secret"
_HEADERS: Final = {"content-type": "application/json"}  # librdkafka takes no other answer


def signing_key(name: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": name, "use": "sig"})


@dataclass(frozen=True)
class Asked:
    """A request for a token. `headers` have names in lower case."""

    headers: Mapping[str, str]
    body: str

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body).items()}


@dataclass(frozen=True)
class Answer:
    """What the server answers instead."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class IdentityServer:
    """See the module.

    Attributes:
        keys: of the document; the last one signs.
        lifetime_s: of tokens.
        claims: more claims of tokens.
        asked: all requests for tokens.
        key_readings: how often the document was read.
        token_answer, keys_answer: if set, they make the answers; None from them: the usual one.
        scheme, port: of its URLs.
    """

    def __init__(self, scheme: str, port: int) -> None:
        self.scheme = scheme
        self.port = port
        self.keys = [signing_key("first")]
        self.lifetime_s = 60.0
        self.claims: dict[str, Any] = {}
        self.asked: list[Asked] = []
        self.key_readings = 0
        self.token_answer: Callable[[Asked], Answer | None] | None = None
        self.keys_answer: Callable[[], Answer | None] | None = None

    @property
    def token_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/token"

    @property
    def keys_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/keys"

    def token(self, subject: str = CLIENT, key: ECKey | None = None, **claims: Any) -> str:
        """A token."""
        signer = self.keys[-1] if key is None else key
        now = time.time()
        every = {"sub": subject, "iat": int(now), "exp": now + self.lifetime_s, "aud": "kafka", **self.claims, **claims}
        return jwt.encode({"alg": "ES256", "kid": signer.kid}, every, signer)

    def answer_to(self, asked: Asked) -> Answer:
        """The usual answer to a request for a token."""
        self.asked.append(asked)
        special = self.token_answer(asked) if self.token_answer is not None else None
        if special is not None:
            return special
        scheme, _, text = asked.headers.get("authorization", "").partition(" ")
        user, _, password = base64.b64decode(text).decode().partition(":") if scheme == "Basic" else ("", "", "")
        if asked.form.get("assertion") or asked.form.get("client_assertion"):
            user, password = CLIENT, SECRET  # the tests check assertions
        if password != SECRET:
            return Answer(401, b'{"error":"invalid_client","error_description":"no such client"}')
        return Answer(200, json.dumps({"access_token": self.token(user), "token_type": "Bearer"}).encode())

    def key_document(self) -> Answer:
        """The document of keys."""
        self.key_readings += 1
        special = self.keys_answer() if self.keys_answer is not None else None
        if special is not None:
            return special
        return Answer(200, json.dumps({"keys": [each.as_dict(private=False) for each in self.keys]}).encode())


@contextmanager
def identity_server(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[IdentityServer]:
    """A running server on a port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(state.key_document())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            self._send(state.answer_to(Asked({name.lower(): value for name, value in self.headers.items()}, body)))

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in {**_HEADERS, "content-length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # clients that the test lets fail

    server = Server(("127.0.0.1", port), Handler)
    state = IdentityServer("https" if tls else "http", server.server_port)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
