"""Kafka's Java clients over every security protocol and mechanism, and their errors: with Barnabas the same as with Kafka.

One process of Java for each side does everything side by side; the tests compare its lines. Ports differ and are left out.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from barnabas.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tests.support.oracle import real_kafka
from tests.support.oracle.quota_requests import Part, alter_quotas, entry
from tests.support.oracle.real_kafka import TOOL_SECONDS_MAX
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.security.planted import without_secrets
from tests.support.security.secured_world import (
    CELLS,
    MECHANISMS,
    PACKAGE,
    PASSWORD,
    Cell,
    SecuredWorld,
    java_properties,
)

pytestmark = pytest.mark.oracle

SOURCE: Final = Path(real_kafka.__file__).with_name("SecuredClients.java")
# Cases in which the broker only closes the connection: the client tries until its time is over.
SILENT: Final = frozenset({"TLS to plaintext", "no login"})
# Both sides refuse with an alert; OpenSSL's names the reason, Java's does not.
ALERTS: Final = {
    "no certificate": ("bad_certificate", "certificate_required"),
    "expired certificate of the client": ("certificate_unknown", "certificate_expired"),
}
IMPATIENT: Final = {
    "default.api.timeout.ms": "4000",
    "request.timeout.ms": "3000",
    "max.block.ms": "4000",
    "delivery.timeout.ms": "4000",
}
PLAIN: Final = Cell("SASL_SSL", "PLAIN")
GROUPS: Final = ("classic", "consumer")
SPREAD_S: Final = 1.0  # until a changed quota applies
CONNECTIONS: Final = 14
TURNS_MAX: Final = 4
CLOSED_S: Final = 3.0  # a connection above the rate is closed after at most a second
Line = tuple[str, str, dict[str, str]]  # kind, name, client properties


def failing(world: SecuredWorld) -> Iterator[Line]:
    """Clients that cannot connect, each as a producer and as an administrator.

    A client without TLS at a listener with TLS is left out: Java takes the alert for the length of an answer, and runs out of memory.
    """
    tls = java_properties(world, Cell("SSL"))
    mutual = {**tls, "bootstrap.servers": world.address("MUTUAL")}
    clients = {
        "wrong authority": {**tls, "ssl.truststore.location": str(world.other.certificate)},
        "wrong host name": {**tls, "bootstrap.servers": world.address("ELSEWHERE")},
        "expired certificate of the broker": {**tls, "bootstrap.servers": world.address("EXPIRED")},
        "no certificate": mutual,
        "expired certificate of the client": {**mutual, **world.old_client.by_file()},
        "TLS to plaintext": {**tls, "bootstrap.servers": world.address("PLAINTEXT")},
        "no login": {**java_properties(world, Cell("PLAINTEXT")), "bootstrap.servers": world.address("SASL_PLAINTEXT")},
        "login without need": {**java_properties(world, PLAIN), "bootstrap.servers": world.address("SSL")},
        "expired token": {
            **java_properties(world, Cell("SASL_SSL")),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": "SecuredClients$Expired",
        },
        "unknown mechanism": {
            **java_properties(world, PLAIN),
            "sasl.mechanism": "SCRAM-SHA-256",
            "bootstrap.servers": world.address("PLAINTEXT"),
            "security.protocol": "SASL_PLAINTEXT",
        },
    }
    for mechanism in MECHANISMS:
        for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
            cell = Cell(listener, mechanism)
            clients[f"wrong password {cell.name}"] = java_properties(world, cell, password="wrong")
        clients[f"unknown user {mechanism}"] = java_properties(world, Cell("SASL_SSL", mechanism), user="eve")
    for name, properties in clients.items():
        limits = IMPATIENT if name in SILENT else {}
        yield "admin", name, {**properties, **limits}
        yield "init", f"{name}:open", {**properties, **limits}


def denied(world: SecuredWorld) -> Iterator[Line]:
    """Clients of bob, who may use the topic, the group and the transactional id `open`."""
    bob = java_properties(world, Cell("SASL_SSL", "SCRAM-SHA-512"), user="bob")
    yield "admin", "cluster", bob
    yield "produce", "topic:closed", bob
    yield "produce", "missing topic:no-such", bob
    yield "init", "transactional id:closed", bob
    yield "commit", "group of a transaction:closed", bob
    for protocol in GROUPS:
        yield "consume", f"topic:closed:open:{protocol}", bob
        yield "consume", f"group:open:closed:{protocol}", bob
        yield "consume", f"allowed:open:open-{protocol}:{protocol}", java_properties(world, PLAIN)


def lines_of(world: SecuredWorld) -> list[Line]:
    setup = {**java_properties(world, Cell("PLAINTEXT")), "test.password": PASSWORD}
    return [
        ("setup", "users", setup),
        *(("round", cell.name, java_properties(world, cell)) for cell in CELLS),
        *failing(world),
        *denied(world),
        ("quotas", "by alice", java_properties(world, PLAIN)),
    ]


def by_java(world: SecuredWorld, folder: Path, names: Collection[str] | None = None) -> dict[str, str]:
    """What the clients said, by kind and name.

    Args:
        names: of the lines that are run; None: all.
    """
    folder.mkdir()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-up"
    jars = Path(os.environ.get("KAFKA_UP_CACHE") or cache) / "4.3.1"
    silent = folder / "log4j2.properties"
    silent.write_text("rootLogger.level=off\n")
    asked = []
    for number, (kind, name, properties) in enumerate(lines_of(world)):
        if names is not None and f"{kind} {name}" not in names:
            continue
        file = folder / f"{number}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        asked.append(f"{kind}\t{name}\t{file}\n")
    command = [
        "java",
        "-cp",
        f"{jars}/*",
        f"-Dlog4j2.configurationFile={silent}",
        "-XX:TieredStopAtLevel=1",
        "-Xmx512m",
    ]
    done = subprocess.run(
        [*command, str(SOURCE)],
        input="".join(asked),
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found = {}
    for line in without_secrets(done.stdout, "the errors of Java").splitlines():
        if line.startswith("="):
            kind, name, said = line[1:].split("\t", 2)
            for of, (theirs, ours) in ALERTS.items():
                said = said.replace(theirs, ours) if name.startswith(of) else said
            found[f"{kind} {name}"] = re.sub(r"\b\d{4,5}\b", "PORT", said)
    return found


class Sides(NamedTuple):
    """Both clusters, and what the clients of Java said there, by side."""

    worlds: dict[str, SecuredWorld]
    said: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def sides(secured_worlds: dict[str, SecuredWorld], tmp_path_factory: pytest.TempPathFactory) -> Sides:
    folder = tmp_path_factory.mktemp("secured-java")
    with ThreadPoolExecutor() as threads:
        answers = {name: threads.submit(by_java, world, folder / name) for name, world in secured_worlds.items()}
        return Sides(secured_worlds, {name: each.result() for name, each in answers.items()})


def test_every_cell_works(sides: Sides) -> None:
    """A committed and an aborted transaction, offsets of a group in it, and groups of both protocols."""
    for side, answers in sides.said.items():
        rounds = {name: answer for name, answer in answers.items() if name.startswith(("setup", "round"))}
        assert rounds.pop("setup users") == "ok", side
        assert rounds == dict.fromkeys(rounds, "read 2 and 2, offsets [7, 5, 5]"), side
        assert len(rounds) == len(CELLS)


def test_errors_are_those_with_kafka(sides: Sides, tmp_path: Path) -> None:
    """Cases that differ are run again: on a busy machine a client may give up before the error comes."""
    theirs, ours = sides.said["Kafka"], sides.said["Barnabas"]
    assert ours.keys() == theirs.keys()
    for turn in range(TURNS_MAX):
        again = [name for name, said in ours.items() if said != theirs[name]]
        if not again:
            break
        theirs, ours = (
            said | by_java(sides.worlds[side], tmp_path / f"{side}-{turn}", again)
            for side, said in (("Kafka", theirs), ("Barnabas", ours))
        )
    differing = [
        f"{name}\n  Kafka: {theirs[name]}\n  Barnabas: {said}" for name, said in ours.items() if said != theirs[name]
    ]
    assert not differing, "\n".join(differing)


def test_no_quota_counts_before_a_login(sides: Sides) -> None:
    """A quota of ANONYMOUS is about clients of listeners without a login."""
    for side, world in sides.worlds.items():
        with Wire(world.address("PLAINTEXT")) as administrator:
            name: list[Part] = [("user", "ANONYMOUS"), ("client-id", "before")]
            alter_quotas(entry(name, ("request_percentage", 0.000_1)))(administrator)
            for _ in attempts(f"{side} applies the quota"):
                with Wire(world.address("PLAINTEXT"), "before") as plain:
                    if plain.call(MetadataRequest(), 3).throttle_time_ms:
                        break
            with Wire(world.address("SASL_PLAINTEXT"), "before") as login:
                before = login.call(ApiVersionsRequest(), 3).throttle_time_ms
            alter_quotas(entry(name, ("request_percentage", None)))(administrator)
        assert before == 0, side


def unused(world: SecuredWorld, listener: str, host: str) -> int:
    """How many connections from an address are closed because it connects too often."""
    found = [
        socket.create_connection(("127.0.0.1", world.ports[listener]), timeout=60, source_address=(host, 0))
        for _ in range(CONNECTIONS)
    ]
    with selectors.DefaultSelector() as selector:
        for each in found:
            selector.register(each, selectors.EVENT_READ)
        closed: set[object] = set()
        end = time.monotonic() + CLOSED_S
        while (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                closed.add(key.fileobj)
                selector.unregister(key.fileobj)
    for each in found:
        each.close()
    return len(closed)


def test_a_rate_of_connections_counts_on_every_listener(sides: Sides) -> None:
    """Ten connections are accepted in the ten seconds that are measured. A busy machine may be too slow for that: it is tried again."""
    for turn in range(TURNS_MAX):
        found = {side: closed_of_each_listener(world, turn) for side, world in sides.worlds.items()}
        if found["Kafka"] == found["Barnabas"] and set(found["Kafka"][1:]) == {CONNECTIONS - 10}:
            return
    raise AssertionError(found)


def closed_of_each_listener(world: SecuredWorld, turn: int) -> list[int]:
    """How many of the connections to each listener are closed, each from an address of its own."""
    listeners = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    hosts = [f"127.0.{7 + turn}.{number}" for number in range(1, 5)]
    with Wire(world.address("PLAINTEXT")) as administrator:
        altered = alter_quotas(*(entry([("ip", host)], ("connection_creation_rate", 1.0)) for host in hosts))
        assert {code for _, code, _ in altered(administrator)} == {0}
        time.sleep(SPREAD_S)
        with ThreadPoolExecutor() as threads:
            return list(threads.map(unused, [world] * 4, listeners, hosts))
