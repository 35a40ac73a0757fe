"""The client side of SASL: published vectors, a server of another library, and messages that must be refused."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
import scramp  # type: ignore[import-untyped]

from barnabas.protocol.sasl import OAuthBearerClient, PlainClient, SaslFailed
from barnabas.protocol.scram import SCRAM_MECHANISMS, ScramClient, ScramKeys

NONCE = "rOprNGfwEbeRWgbNEkqO"


def scram(
    mechanism: str = "SCRAM-SHA-256", password: str = "pencil", nonce: str = NONCE, user: str = "user"
) -> ScramClient:
    return ScramClient(mechanism, user, ScramKeys(mechanism, password), nonce)


def test_plain_is_one_message() -> None:
    client = PlainClient("alice", "pa ss")
    assert client.start() == b"\0alice\0pa ss"
    assert client.step(b"") is None


@pytest.mark.parametrize(("user", "password"), [("", "x"), ("x", ""), ("a\0b", "x"), ("x", "a\0b")])
def test_plain_refuses_what_it_cannot_send(user: str, password: str) -> None:
    with pytest.raises(SaslFailed, match="is empty or contains a null character"):
        PlainClient(user, password)


def test_scram_follows_the_vector_of_rfc_7677() -> None:
    client = scram()
    assert client.start() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.work(first) is None
    assert client.step(first) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize("mechanism", sorted(SCRAM_MECHANISMS))
@pytest.mark.parametrize("user", ["user", "a=b,c", "jürgen"])
def test_scram_and_the_server_of_another_library_agree(mechanism: str, user: str) -> None:
    stored = scramp.ScramMechanism(mechanism)
    info = stored.make_auth_info("pencil", iteration_count=4_096, salt=b"0123456789abcdef")
    server = stored.make_server(lambda name: {user: info}[name])
    client = scram(mechanism, user=user)
    server.set_client_first(client.start().decode())
    final = client.step(server.get_server_first().encode())
    assert final is not None
    server.set_client_final(final.decode())
    assert client.step(server.get_server_final().encode()) is None


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    client = scram()
    client.step(f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    with pytest.raises(SaslFailed, match="it does not know the password"):
        client.step(b"v=" + base64.b64encode(bytes(32)))


def test_an_error_of_the_server_is_shown() -> None:
    client = scram()
    client.step(f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    with pytest.raises(SaslFailed, match="SCRAM-SHA-256: the broker refused the login: invalid-proof"):
        client.step(b"e=invalid-proof")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "does not begin with"),
        (b"m=x,r=a,s=b,i=1", "does not begin with"),
        (f"r={NONCE},s=c2FsdA==,i=4096".encode(), "does not continue"),
        (b"r=other,s=c2FsdA==,i=4096", "does not continue"),
        (f"r={NONCE}x,s=????,i=4096".encode(), "not base64"),
        (f"r={NONCE}x,s=,i=4096".encode(), "not base64"),
        (f"r={NONCE}x,s=c2FsdA==,i=4095".encode(), "4095 iterations"),
        (f"r={NONCE}x,s=c2FsdA==,i=1000001".encode(), "1000001 iterations"),
        (f"r={NONCE}x,s=c2FsdA==,i=-1".encode(), "no number"),
        (f"r={NONCE}x,s=c2FsdA==,i={'9' * 50}".encode(), "no number"),
        (f"r={NONCE}x\xff,s=c2FsdA==,i=4096".encode("latin-1"), "not ASCII"),
        (b"r=" + b"x" * 5_000, "more than 4096 bytes"),
    ],
)
def test_a_first_message_that_must_be_refused(message: bytes, why: str) -> None:
    client = scram()
    assert client.work(message) is None
    with pytest.raises(SaslFailed, match=why):
        client.step(message)


def test_many_iterations_are_work_for_a_thread_and_are_computed_once() -> None:
    keys = ScramKeys("SCRAM-SHA-256", "pencil")
    first = f"r={NONCE}x,s=c2FsdA==,i=10000".encode()
    client = ScramClient("SCRAM-SHA-256", "user", keys, NONCE)
    work = client.work(first)
    assert work is not None
    work()
    assert client.work(first) is None
    assert ScramClient("SCRAM-SHA-256", "user", keys, NONCE).work(first) is None
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt", 10_000)
    assert keys.get(b"salt", 10_000).client == hmac.digest(salted, b"Client Key", "sha256")


def test_a_delegation_token_says_that_it_is_one() -> None:
    client = ScramClient("SCRAM-SHA-512", "id", ScramKeys("SCRAM-SHA-512", "mac"), "n", token=True)
    assert client.start() == b"n,,n=id,r=n,tokenauth=true"


def test_oauthbearer_sends_the_token_and_its_extensions() -> None:
    client = OAuthBearerClient("a.b.c", {"logicalCluster": "lkc-1"})
    assert client.start() == b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01\x01"
    assert client.step(b"") is None


def test_oauthbearer_ends_a_refused_conversation() -> None:
    client = OAuthBearerClient("a.b.c")
    assert client.step(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslFailed, match="refused the token: invalid_token"):
        client.step(b"more")


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("a b", {}),
        ("a\x01b", {}),
        ("x" * 300_000, {}),
        ("t", {"auth": "x"}),
        ("t", {"a1": "x"}),
        ("t", {"a": "\x01"}),
    ],
)
def test_oauthbearer_refuses_what_it_cannot_send(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(SaslFailed, match="OAUTHBEARER: the") as refused:
        OAuthBearerClient(token, extensions)
    assert len(str(refused.value)) < 300  # the token is a secret
