"""Delegation tokens from end to end: made by a user, used for logins, renewed and expired."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any

import pytest

from barnabas.broker.security import login
from barnabas.client import Admin, KafkaError
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from barnabas.protocol.messages.scram_users import AlterUserScramCredentialsRequest, ScramCredentialDeletion
from barnabas.runtime.offload import WorkerThread
from tests.support.oracle.sasl_script import ALICE, BOB, SCRAM_USERS, USERS, SaslWire, Scram, sasl_settings
from tests.support.oracle.wire import Wire
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.sasl_node import add_scram_user, address_of, sasl_node
from tests.support.waiting import until

NOT_ALLOWED, NOT_FOUND, MISMATCH = 64, 62, 63
SETTINGS = {
    **dict(each.split("=", 1) for each in sasl_settings("SASL")),
    "delegation.token.secret.key": "planted-secret-of-tokens",
    "delegation.token.expiry.check.interval.ms": "50",
    "connection.failed.authentication.delay.ms": "0",
}


def logged_in(address: str, token: bytes) -> SaslWire:
    wire = SaslWire(address)
    wire.handshake("PLAIN")
    wire.token(token)
    return wire


def by_token(address: str, made: Any, mechanism: str) -> SaslWire:
    """A connection that logs in by a token; its last note tells the outcome."""
    wire = SaslWire(address)
    hash_name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    password = base64.b64encode(made.hmac).decode()
    client = Scram(made.token_id, password, hash_name, extension=",tokenauth=true")
    wire.handshake(mechanism)
    wire.token(client.final(wire.token(client.first())))
    return wire


def script(address: str, plaintext: str) -> Any:
    """Returns a token that expires in a moment."""
    bob = TokenPrincipal(principal_type="User", principal_name="bob")
    with logged_in(address, ALICE) as alice, logged_in(address, BOB) as other, Wire(plaintext) as anonymous:
        made = alice.call(CreateDelegationTokenRequest(renewers=[bob], max_lifetime_ms=-1), 3)
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "alice", "alice")
        assert anonymous.call(CreateDelegationTokenRequest(), 3).error_code == NOT_ALLOWED
        [described] = alice.call(DescribeDelegationTokenRequest(owners=None), 3).tokens
        assert (described.token_id, described.hmac, described.renewers[0]) == (made.token_id, made.hmac, bob)
        assert alice.call(DescribeDelegationTokenRequest(owners=[]), 3).tokens == []
        assert len(other.call(DescribeDelegationTokenRequest(owners=None), 1).tokens) == 1
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            with by_token(address, made, mechanism) as holder:
                assert holder.said[-1][:5] == ("token", 0, "", True, "long")  # without a note of how long it took
                assert holder.call(CreateDelegationTokenRequest(), 3).error_code == NOT_ALLOWED
                assert holder.call(DescribeDelegationTokenRequest(owners=None), 3).error_code == NOT_ALLOWED
        renewed = other.call(RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=60_000), 2)
        assert renewed.error_code == 0
        assert renewed.expiry_timestamp_ms < made.expiry_timestamp_ms
        unknown = other.call(RenewDelegationTokenRequest(hmac=b"x"), 2)
        assert (unknown.error_code, unknown.expiry_timestamp_ms) == (NOT_FOUND, 0)
        second = alice.call(CreateDelegationTokenRequest(max_lifetime_ms=-1), 2)
        assert other.call(ExpireDelegationTokenRequest(hmac=second.hmac), 2).error_code == MISMATCH
        assert alice.call(ExpireDelegationTokenRequest(hmac=second.hmac, expiry_time_period_ms=-1), 2).error_code == 0
        with by_token(address, second, "SCRAM-SHA-256") as refused:
            assert refused.said[-1][1] == 58
        assert alice.call(ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=1), 2).error_code == 0
        return made


async def test_the_life_of_tokens(caplog: Any) -> None:
    caplog.set_level("DEBUG")
    async with sasl_node(SETTINGS, "SASL") as node:
        await add_scram_user(node, "alice", SCRAM_USERS["alice"], "SCRAM-SHA-256")
        address = address_of(node, "SASL")
        made = await asyncio.to_thread(script, address, address_of(node, "PLAINTEXT"))
        await until(lambda: not node.current_image.image.delegation_tokens)
        with await asyncio.to_thread(by_token, address, made, "SCRAM-SHA-512") as late:
            assert late.said[-1][1] == 58
    assert SETTINGS["delegation.token.secret.key"] not in caplog.text
    assert base64.b64encode(made.hmac).decode() not in caplog.text


async def test_the_iterations_of_a_token_are_computed_in_a_thread_once_for_each_mechanism(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    derived = login._derived

    def noted(mechanism: str, token_id: str, secret: str) -> tuple[bytes, bytes, bytes]:
        threads.append(threading.get_ident())
        return derived(mechanism, token_id, secret)

    monkeypatch.setattr(login, "_derived", noted)

    def logins(address: str) -> None:
        with logged_in(address, ALICE) as alice:
            made = alice.call(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "SCRAM-SHA-256"):
            with by_token(address, made, mechanism) as holder:
                assert holder.said[-1][1] == 0

    async with sasl_node(SETTINGS, "SASL", offload=WorkerThread().run) as node:
        await asyncio.to_thread(logins, address_of(node, "SASL"))
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_the_admin_client_manages_tokens_over_tls(ca: CertificateAuthority) -> None:
    settings = {
        **SETTINGS,
        **ca.issue("node-of-tokens").by_file(),
        **ca.truststore(),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_SSL",
    }
    async with sasl_node(settings, "SASL") as node:
        admin = Admin(
            bootstrap_servers=address_of(node, "SASL"),
            security_protocol="SASL_SSL",
            ssl_cafile=str(ca.certificate),
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password=USERS["alice"],
        )
        async with admin:
            made = await admin.create_delegation_token(renewers=["bob"])
            assert (made.owner, made.requester, made.renewers) == ("alice", "alice", ("bob",))
            assert str(made.hmac) not in repr(made)
            assert await admin.describe_delegation_tokens(["alice"]) == [made]
            assert await admin.describe_delegation_tokens(["carol"]) == []
            assert await admin.renew_delegation_token(made.hmac, renew_period_ms=60_000) < made.expiry_ms
            await admin.expire_delegation_token(made.hmac)
            assert await admin.describe_delegation_tokens() == []
            with pytest.raises(KafkaError, match="DELEGATION_TOKEN_NOT_FOUND"):
                await admin.renew_delegation_token(made.hmac)


async def test_the_deletion_of_a_user_refuses_new_logins_and_keeps_open_connections() -> None:
    deletion = ScramCredentialDeletion(name="alice", mechanism=1)

    def begun(address: str) -> SaslWire:
        wire, client = SaslWire(address), Scram("alice", SCRAM_USERS["alice"])
        wire.handshake("SCRAM-SHA-256")
        wire.token(client.final(wire.token(client.first())))
        return wire

    def script(address: str, plaintext: str) -> None:
        with begun(address) as before, Wire(plaintext) as admin:
            assert before.said[-1][1] == 0
            deleted = admin.call(AlterUserScramCredentialsRequest(deletions=[deletion]), 0)
            assert [each.error_code for each in deleted.results] == [0]
            assert before.call(DescribeDelegationTokenRequest(owners=None), 3).error_code == 0
            with begun(address) as after:
                assert after.said[-1][1] == 58

    async with sasl_node(SETTINGS, "SASL") as node:
        await add_scram_user(node, "alice", SCRAM_USERS["alice"], "SCRAM-SHA-256")
        await asyncio.to_thread(script, address_of(node, "SASL"), address_of(node, "PLAINTEXT"))
