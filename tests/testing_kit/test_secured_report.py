"""The report of a failed test and `--kafka-trace` hold no password, no message of a login and no HMAC of a token."""

from __future__ import annotations

import base64
import json
import re

import pytest

from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]

PASSWORDS = ("planted-plain", "planted-scram", "planted-altered")
# The passwords are in a file: pytest shows the source of a test that fails. The session is short, so that the client logs in again.
FAILING = """
import json, time
from pathlib import Path
import pytest
from barnabas.client import Admin, Producer

PLAIN, SCRAM, ALTERED = json.loads(Path("passwords.json").read_text())
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PREFIX = "listener.name.sasl_plaintext"
CONFIG = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "delegation.token.secret.key": "planted-master-key",
    f"{PREFIX}.plain.sasl.jaas.config": f'{MODULE} user_alice="{PLAIN}";',
    f"{PREFIX}.connections.max.reauth.ms": "300",
}

def client(kafka, mechanism, name, password, **more):
    return dict(bootstrap_servers=kafka.bootstrap_servers, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
        sasl_plain_username=name, sasl_plain_password=password, **more)

async def use(kafka):
    async with Admin(**client(kafka, "PLAIN", "alice", PLAIN)) as admin:
        await admin.set_scram_password("bob", SCRAM, mechanism="SCRAM-SHA-256")
        await admin.alter_configs({f"{PREFIX}.plain.sasl.jaas.config": f'{MODULE} user_alice="{ALTERED}";'}, broker=1)
        token = await admin.create_delegation_token()
        Path("hmac").write_bytes(token.hmac)
    async with Producer(**client(kafka, "SCRAM-SHA-256", "bob", SCRAM, client_id="again")) as producer:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            await producer.send_and_wait("orders", b"tea")
    await wrong(kafka)

async def wrong(kafka):
    with pytest.raises(Exception):
        async with Admin(**client(kafka, "PLAIN", "alice", PLAIN, request_timeout_ms=1000)) as admin:
            await admin.describe_cluster()

@pytest.mark.kafka(config=CONFIG, topics={"orders": 1}, security_protocol="SASL_PLAINTEXT")
def test_fails(kafka):
    import asyncio
    asyncio.run(use(kafka))
    assert False
"""


@pytest.mark.process
def test_no_secret_is_shown(pytester: pytest.Pytester) -> None:
    (pytester.path / "passwords.json").write_text(json.dumps(PASSWORDS))
    pytester.makepyfile(FAILING)
    result = pytester.runpytest_subprocess("--kafka-trace=on", "--log-level=DEBUG")
    result.assert_outcomes(failed=1)
    shown = result.stdout.str() + result.stderr.str()
    assert re.search(r"AlterUserScramCredentials", shown), "the report names the requests"
    assert "client 'again'" in shown
    hmac = (pytester.path / "hmac").read_bytes()
    traces = list((pytester.path / "kafka-traces").glob("*.kafkatrace"))
    assert traces, "there is a trace"
    kept = shown + "".join(each.read_bytes().decode("latin-1") for each in traces)
    for secret in (*PASSWORDS, "planted-master-key", hmac.hex(), base64.b64encode(hmac).decode(), repr(hmac)[2:-1]):
        assert secret not in kept
    assert not re.search(r"auth_bytes|salted_password|\bp=[A-Za-z0-9+/]{20}|r=[A-Za-z0-9]{20}", kept)
