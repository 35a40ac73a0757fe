"""SCRAM on the server's side: the vector of RFC 7677, a foreign client, wrong messages."""

from __future__ import annotations

import base64
import hashlib
import hmac
from types import SimpleNamespace
from typing import Any

import pytest
from scramp import ScramClient as ForeignClient  # type: ignore[import-untyped]  # scramp has no types

from barnabas.broker.image.records import UserScramCredentialRecord
from barnabas.broker.sasl.scram_server import ScramServer, StoredCredential, salt_size
from barnabas.broker.sasl.server_mechanism import LoginFailed, LoginIdentity
from barnabas.broker.scheduling.slices import in_place
from barnabas.broker.security.login import ServerLogins
from tests.support.broker.metadata_images import changed

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def credential(mechanism: str, user: str = "user", password: str = "pencil") -> StoredCredential:
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), SALT, 4_096)
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return StoredCredential(SALT, stored_key, hmac.digest(salted, b"Server Key", name), 4_096, LoginIdentity(user))


def server(mechanism: str = "SCRAM-SHA-256") -> ScramServer:
    def find(name: str, by_token: bool) -> StoredCredential | None:
        return credential(mechanism) if name == "user" and not by_token else None

    return ScramServer(mechanism, find, lambda name, by_token: (SALT, 4_096), lambda token: None, NONCE)


def test_the_vector_of_rfc_7677() -> None:
    exchange = server()
    first = exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", 0)
    assert first == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert exchange.identity is None
    final = exchange.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        0,
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.identity == LoginIdentity("user")


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_foreign_client_logs_in(mechanism: str) -> None:
    client, exchange = ForeignClient([mechanism], "user", "pencil"), server(mechanism)
    client.set_server_first(exchange.step(client.get_client_first().encode(), 0).decode())
    client.set_server_final(exchange.step(client.get_client_final().encode(), 0).decode())
    assert exchange.identity == LoginIdentity("user")


@pytest.mark.parametrize("name", ["user", "nobody"])
def test_known_and_unknown_names_take_the_same_steps(name: str) -> None:
    asked: list[tuple[str, str]] = []

    def find(user: str, by_token: bool) -> StoredCredential | None:
        asked.append(("find", user))
        return credential("SCRAM-SHA-256") if user == "user" else None

    def unknown(user: str, by_token: bool) -> tuple[bytes, int]:
        asked.append(("unknown", user))
        return SALT, 4_096

    ScramServer("SCRAM-SHA-256", find, unknown, lambda token: None, NONCE).step(f"n,,n={name},r=abc".encode(), 0)
    assert asked == [("find", name), ("unknown", name)]


@pytest.mark.parametrize(("user", "password"), [("user", "wrong"), ("nobody", "pencil")], ids=["password", "user"])
def test_a_wrong_password_and_an_unknown_user_have_the_same_answers(user: str, password: str) -> None:
    client, exchange = ForeignClient(["SCRAM-SHA-256"], user, password), server()
    challenge = exchange.step(client.get_client_first().encode(), 0).decode()
    assert challenge.endswith(",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    client.set_server_first(challenge)
    with pytest.raises(LoginFailed) as caught:
        exchange.step(client.get_client_final().encode(), 0)
    assert caught.value.message is None
    assert exchange.identity is None


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,m=x",
        b"n,,n=user,r=abc,other=y,m=x,tokenauth=true",
        b"n,,n=user,r=a,b",
        b"n,,n=\xff,r=abc",
        b"n,,n=user,r=" + b"a" * 10_000,
    ],
    ids=range(12),
)
def test_malformed_first_messages(first: bytes) -> None:
    with pytest.raises(LoginFailed):
        server().step(first, 0)


def test_representations_show_no_key() -> None:
    shown = repr(credential("SCRAM-SHA-256"))
    assert shown == "StoredCredential(iterations=4096)"


def test_the_keys_of_a_token_are_derived_before_the_step_that_looks_them_up() -> None:
    derived: list[str] = []
    found: dict[str, StoredCredential] = {}

    def derive(token_id: str) -> Any:
        return None if token_id in found else lambda: derived.append(token_id)

    exchange = ScramServer(
        "SCRAM-SHA-256", lambda name, by_token: found.get(name), lambda name, by_token: (SALT, 4_096), derive, NONCE
    )
    first = b"n,,n=token,r=abc,tokenauth=true"
    for quick in (b"n,,n=token,r=abc", b"n,,n=token,r=abc,tokenauth=false", b"\xff", b"n,,n=token"):
        assert exchange.work(quick) is None
    work = exchange.work(first)
    assert work is not None
    assert derived == []
    work()
    assert derived == ["token"]
    found["token"] = credential("SCRAM-SHA-256")
    assert exchange.work(first) is None
    exchange.step(first, 0)
    assert exchange.work(first) is None, "the second message is quick"


SOMEBODY = UserScramCredentialRecord(
    salt=b"salt-of-somebody", stored_key=b"stored", server_key=b"server-key", iterations=4_096
)
OF_KAFKA = UserScramCredentialRecord(salt=b"1h4n2kq0zzv83ab5e7c9d0f2g6", server_key=b"server-key", iterations=8_192)


def logins_with(users: Any) -> ServerLogins:
    current: Any = SimpleNamespace(image=SimpleNamespace(scram_credentials=users))
    nothing: Any = None
    return ServerLogins(nothing, nothing, current, nothing, lambda: "cluster", [], in_place)


def unknown(users: Any, name: str = "carol", mechanism: str = "SCRAM-SHA-256") -> tuple[bytes, int]:
    return logins_with(users)._unknown(mechanism, name, False)


def test_the_salt_of_an_unknown_user_cannot_be_computed_from_what_clients_know() -> None:
    users = {(1, "admin"): SOMEBODY}
    others = {(1, "admin"): changed(SOMEBODY, server_key=b"another-key")}
    salt, iterations = unknown(users)
    assert (len(salt), iterations) == (len(SOMEBODY.salt), SOMEBODY.iterations)
    assert unknown(dict(users)) == (salt, iterations)  # on every node
    assert unknown(users, "dave")[0] != salt
    assert unknown(others)[0] != salt


def test_unknown_users_look_like_users_of_every_kind() -> None:
    """Also the only user with more iterations, and salts of Kafka's tools: 130 random bits in base 36."""
    users = {(1, "admin"): SOMEBODY, (1, "jim"): OF_KAFKA, (2, "eve"): changed(SOMEBODY, iterations=5_000)}
    seen = [unknown(users, f"nobody-{number}") for number in range(400)]
    kinds = {(iterations, salt_size(salt)) for salt, iterations in seen}
    assert kinds == {(4_096, 16), (8_192, None)}
    of_kafka = [salt for salt, iterations in seen if iterations == 8_192]
    assert {len(salt) for salt in of_kafka} >= {25, 26}
    assert all(int(salt, 36) < 1 << 130 for salt in of_kafka)
    assert len({salt for salt, _ in seen}) == len(seen)
    assert unknown(users, mechanism="SCRAM-SHA-512")[1] == 5_000
    long = {(1, "admin"): changed(SOMEBODY, salt=bytes(200))}
    assert len(set(unknown(long)[0])) > 64, "a long salt repeats nothing"


def test_an_unknown_user_keeps_its_salt_when_users_are_added() -> None:
    users = {(1, "admin"): SOMEBODY, (1, "jim"): OF_KAFKA}
    more = {**users, **{(1, f"user-{number}"): SOMEBODY for number in range(100)}}
    names = [f"nobody-{number}" for number in range(60)]
    before = [unknown(users, name) for name in names]
    assert [unknown(more, name) for name in names] == before
    more[1, "another"] = changed(SOMEBODY, iterations=6_000)
    kept = sum(unknown(more, name) == former for name, former in zip(names, before, strict=True))
    assert 20 < kept < 60


def test_an_unknown_token_looks_like_a_token() -> None:
    salt, iterations = logins_with({(1, "jim"): OF_KAFKA})._unknown("SCRAM-SHA-256", "token", True)
    assert (len(salt), iterations) == (16, 4_096)


def test_a_login_of_an_unknown_user_takes_no_longer_with_many_users() -> None:
    seen = 0

    class Credentials(dict[tuple[int, str], Any]):
        def items(self) -> Any:
            nonlocal seen
            for item in super().items():
                seen += 1
                yield item

    logins = logins_with(Credentials({(1, f"user-{number}"): SOMEBODY for number in range(20_000)}))
    salt, iterations = logins._unknown("SCRAM-SHA-512", "carol", False)
    assert (len(salt), iterations) == (16, 4_096)
    assert seen <= 10_001
    for name in ("dave", "erin"):
        logins._unknown("SCRAM-SHA-256", name, False)
    assert seen <= 10_001, "they are looked at once for each change"
