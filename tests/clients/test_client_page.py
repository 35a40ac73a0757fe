"""The examples of docs/client.md as they are printed, in order, against one broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, Producer, Record, TopicPartition, oauth_tokens
from barnabas.testing import Broker
from tests.support.processes.fixtures import Serve
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.identity_server import SECRET, identity_server
from tests.support.snippets import snippets

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
FIRST, COPY, NOTES, GROUPS, TWO_PHASE, LOGIN, TOKENS = snippets(PAGE, "python")


async def run(snippet: str, bootstrap: str) -> dict[str, Any]:
    """Runs an example as `python -m asyncio` does; returns its names."""
    code = compile(
        snippet.replace("localhost:9092", bootstrap), str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    names: dict[str, Any] = {}
    async with asyncio.timeout(240):
        waiting = eval(code, names)
        if inspect.isawaitable(waiting):
            await waiting
    return names


async def values(bootstrap: str, topic: str) -> list[bytes]:
    """What a read_committed reader finds up to the present end of partition 0."""
    found: list[Record[Any, Any]] = []
    async with Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([tp := TopicPartition(topic, 0)])
        end = (await consumer.end_offsets([tp]))[tp]
        async with asyncio.timeout(60):
            while await consumer.position(tp) < end:
                found += (await consumer.getmany(timeout_ms=200)).get(tp, [])
    return [record.value or b"" for record in found]


async def test_the_examples_do_what_the_page_says(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one of them makes a database
    bootstrap = serve(
        "group.initial.rebalance.delay.ms=0",
        "group.consumer.min.heartbeat.interval.ms=100",
        "group.consumer.heartbeat.interval.ms=100",
    ).bootstrap_servers
    await run(FIRST, bootstrap)
    assert await values(bootstrap, "orders") == [b"value"] * 3
    assert len(await values(bootstrap, "audit")) == 1
    await run(COPY, bootstrap)
    assert await values(bootstrap, "shouted") == [b"VALUE"] * 3
    names = await run(NOTES, bootstrap)
    note = names["record"]
    assert (note.key, note.value, dict(note.headers)) == ("shopping", b"milk", {"author": b"ann", "trace": b"\x07"})
    names = await run(GROUPS, bootstrap)
    assert names["commit"].done()
    for _ in range(2):  # the second process meets the decision of the first
        names = await run(TWO_PHASE, bootstrap)
        names["db"].close()
    assert await values(bootstrap, "orders") == [b"value"] * 3 + [b"tea", b"cake", b"milk"] * 2


async def test_the_login_of_the_page(ca: CertificateAuthority) -> None:
    config = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required user_root="planted-root";',
        **ca.issue("page").by_file(),
    }
    with Broker(config=config, security_protocol="SASL_SSL") as kafka:
        over_tls: Any = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(ca.certificate),
        }
        root: Any = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "root", "sasl_plain_password": "planted-root"}
        async with Admin(**over_tls, **root) as admin:
            await admin.set_scram_password("alice", "planted-alice", mechanism="SCRAM-SHA-512")
        printed = LOGIN.replace("broker:9093", kafka.bootstrap_servers).replace("ca.pem", str(ca.certificate))
        async with eval(printed, {"Producer": Producer, "password": "planted-alice"}) as producer:
            await producer.send("orders", b"tea")
        async with Admin(**over_tls, **root) as admin:
            assert await admin.list_topics() == ["orders"]


async def test_the_tokens_of_the_page(ca: CertificateAuthority) -> None:
    with identity_server() as idp:
        config = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": idp.keys_url,
            **ca.issue("page").by_file(),
        }
        with Broker(config=config, security_protocol="SASL_SSL") as kafka:
            printed = TOKENS.replace("broker:9093", kafka.bootstrap_servers).replace("ca.pem", str(ca.certificate))
            printed = printed.replace("https://idp.example.com/token", idp.token_url)
            names: dict[str, Any] = {"Producer": Producer, "oauth_tokens": oauth_tokens, "password": SECRET}
            exec(printed.replace("\nProducer(", "\nproducer = Producer("), names)
            async with names["producer"] as producer:
                assert (await producer.send_and_wait("orders", b"tea")).offset == 0
    assert [each.form["grant_type"] for each in idp.asked] == ["client_credentials"]
