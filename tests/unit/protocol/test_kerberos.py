"""GSSAPI without a Kerberos library: both sides over contexts that only count, and what each side refuses."""

from __future__ import annotations

import gc

import pytest

from barnabas.broker.config.kerberos_names import local_names
from barnabas.broker.sasl.server_mechanism import LoginFailed
from barnabas.broker.security.core.gssapi_server import GssapiServer
from barnabas.protocol.kerberos import GssapiClient, GssFailed
from barnabas.protocol.sasl import SaslFailed

CLIENT = "alice@R"


class Context:
    """A context of `rounds` messages in each direction; `wrap` puts a letter before a message."""

    def __init__(self, messages: list[bytes], failure: str = "") -> None:
        self.messages = messages
        self.failure = failure
        self.complete = False
        self.client = CLIENT
        self.got: list[bytes] = []

    def step(self, token: bytes) -> bytes:
        if self.failure:
            raise GssFailed(self.failure)
        self.got.append(token)
        message = self.messages.pop(0)
        self.complete = not self.messages
        return message

    def wrap(self, data: bytes) -> bytes:
        return b"w" + data

    def unwrap(self, data: bytes) -> bytes:
        if data[:1] != b"w":
            raise GssFailed("no signature")
        return data[1:]


def server_of(context: Context) -> tuple[GssapiServer, list[str]]:
    refused: list[str] = []
    return GssapiServer(context, local_names(["DEFAULT"], "R"), refused.append), refused


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_conversation(rounds: int, in_thread: bool) -> None:
    """The server's context may need several messages; its last one may be empty."""
    client = GssapiClient(Context([b"c%d" % n for n in range(rounds)] + [b""]))
    server, _ = server_of(Context([b"s%d" % n for n in range(rounds)]))
    message: bytes | None = client.start()
    steps = 0
    while message is not None:
        if in_thread:
            server.work(message)()
        answer = server.step(message, 0)
        work = client.work(answer)
        if in_thread and work is not None:
            work()
        message = client.step(answer)
        steps += 1
    assert server.identity is not None
    assert server.identity.name == "alice"
    assert server.identity.expires_at_ms is None
    assert steps == rounds + 2


def test_a_context_without_a_last_message_offers_at_once() -> None:
    context = Context([b""])
    server, _ = server_of(context)
    assert server.step(b"c", 0) == b"w\1\0\0\0"
    assert server.step(b"w\1\0\0\0anybody", 0) == b""
    assert server.identity is not None
    assert server.identity.name == "alice"  # the authorization id has no effect


@pytest.mark.parametrize("last", [b"", b"\1\0\0\0", b"w", b"w\1\0\0", b"w\2\0\0\0", b"w\4\0\0\0", b"w\0\0\0\0"])
def test_last_messages_that_are_refused(last: bytes) -> None:
    server, refused = server_of(Context([b""]))
    server.step(b"c", 0)
    with pytest.raises(LoginFailed):
        server.step(last, 0)
    assert server.identity is None
    assert len(refused) == 1


def test_a_message_where_an_empty_one_is_due() -> None:
    server, _ = server_of(Context([b"s"]))
    server.step(b"c", 0)
    with pytest.raises(LoginFailed):
        server.step(b"more", 0)


def test_a_principal_without_a_rule() -> None:
    context = Context([b""])
    context.client = "alice@OTHER"
    server, refused = server_of(context)
    server.step(b"c", 0)
    with pytest.raises(LoginFailed):
        server.step(b"w\1\0\0\0", 0)
    assert "alice@OTHER" in refused[0]


@pytest.mark.parametrize("offer", [b"", b"w", b"w\1\0\0", b"w\6\0\0\0", b"\1\0\0\0"])
def test_offers_that_a_client_refuses(offer: bytes) -> None:
    client = GssapiClient(Context([b"c"]))
    client.start()
    with pytest.raises(SaslFailed, match="GSSAPI: "):
        client.step(offer)


def test_a_client_without_a_ticket() -> None:
    client = GssapiClient(Context([], "No credentials cache found"))
    work = client.work(None)
    assert work is not None
    work()
    with pytest.raises(SaslFailed, match="GSSAPI: No credentials cache found"):
        client.start()


def test_a_broker_that_continues_after_the_last_message() -> None:
    client = GssapiClient(Context([b"c"]))
    client.start()
    assert client.step(b"w\1\0\0\0") == b"w\1\0\0\0"
    with pytest.raises(SaslFailed, match="continues after the last message"):
        client.step(b"x")


def refused_logins() -> None:
    """A refusal by the context, by the last message, and by the rules; and a client without a ticket."""
    other = Context([b""])
    other.client = "alice@OTHER"
    for context, last in ((Context([], "no"), b""), (Context([b""]), b"noise"), (other, b"w\1\0\0\0")):
        server, _ = server_of(context)
        try:
            server.step(b"c", 0)
            server.step(last, 0)
        except LoginFailed:
            continue
    try:
        GssapiClient(Context([], "no ticket")).start()
    except SaslFailed:
        pass


def test_refusals_leave_no_reference_cycles() -> None:
    """Strangers could fill the memory with them."""
    refused_logins()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            refused_logins()
        assert gc.collect() == 0
    finally:
        gc.enable()
