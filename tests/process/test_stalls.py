"""Huge requests, hostile and legitimate, beside a client that produces at depth 1: they hold up no client, and memory stays bounded.

Measured is the CPU time of the longest turn of the broker's loop, which a busy machine stretches little, not the time that the
other client waits; `bench/stalls.py` measures that. The suite sends one request of each family of handlers, the soak one of each API,
`bench/stalls.py` all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.protocol import registry
from tests.support.processes.attacked import ATTACKS, Attack, attack_each
from tests.support.processes.huge import CATALOGUE
from tests.support.processes.huge.request import BrokerObjects
from tests.support.processes.stalling import Stalled, send_each

pytestmark = pytest.mark.process

MIB = 1024 * 1024
TURN_SECONDS_MAX = 0.25  # a turn is 1 to 10 ms on a quiet machine; without slices up to 6.7 s
GROWTH_BYTES_MAX = 64 * MIB
ATTACKED_BYTES_MAX = 128 * MIB  # as many as the frames of all connections may take, and some
# Requests that take much memory and change nothing: sent twice more at the end, they must find room in what was freed.
REPEATED = ("Produce: unknown topics", "Produce: unknown partitions", "ConsumerGroupDescribe: unknown groups")
# Beside the first requests: what common clients send, EndTxn for the transaction before it, and the longest request of its API.
ALSO = (
    "Metadata: unknown topics",
    "OffsetCommit: unknown partitions",
    "AddPartitionsToTxn: every partition",
    "EndTxn: markers for every partition",
    "OffsetFetch: many groups",
)


FAMILIES = {api.name: api.family for api in registry.API.values()}


@pytest.fixture(scope="module", params=["families", pytest.param("APIs", marks=pytest.mark.soak)])
def stalled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Stalled]:
    """What the first request of each family or API in the catalogue did, and then each of REPEATED, twice."""
    by_api = {huge.name.partition(":")[0]: huge for huge in reversed(CATALOGUE)}
    first = {FAMILIES[api]: huge for api, huge in by_api.items()} if request.param == "families" else by_api
    chosen = [huge for huge in CATALOGUE if huge in first.values() or huge.name in (*REPEATED, *ALSO)]
    requests = [*chosen, *[huge for huge in chosen if huge.name in REPEATED] * 2]
    return list(send_each(tmp_path_factory.mktemp("stalls"), BrokerObjects(partitions=500, topics=500), requests))


def test_no_request_keeps_the_loop_from_others(stalled: list[Stalled]) -> None:
    long = {each.huge.name: round(each.turn_s, 3) for each in stalled if each.turn_s > TURN_SECONDS_MAX}
    assert long == {}
    assert {FAMILIES[each.huge.name.partition(":")[0]] for each in stalled} == set(FAMILIES.values())


def test_the_other_client_is_served_meanwhile(stalled: list[Stalled]) -> None:
    """A request that takes the broker a second leaves room for others, also on a busy machine."""
    starved = {each.huge.name: each.produced for each in stalled if each.answer_s > 1.0 and each.produced < 3}
    assert starved == {}


def test_no_request_takes_much_memory(stalled: list[Stalled]) -> None:
    assert {each.huge.name: each.growth_bytes for each in stalled if each.growth_bytes > GROWTH_BYTES_MAX} == {}
    again = stalled[-2 * len(REPEATED) :]
    assert [each.huge.name for each in again] == [*REPEATED, *REPEATED]
    assert sum(each.growth_bytes for each in again) < GROWTH_BYTES_MAX


def test_every_request_is_answered_as_kafka_does(stalled: list[Stalled]) -> None:
    assert {each.huge.name: sorted(each.codes) for each in stalled if not each.as_expected} == {}


@pytest.mark.parametrize(
    "attack",
    [each for each in ATTACKS if any(word in each.name for word in ("60 kB", "8 MB", "OAuth", "2,000 members"))],
    ids=lambda attack: attack.name,
)
def test_no_attack_keeps_the_loop_from_others_or_takes_much_memory(tmp_path: Path, attack: Attack) -> None:
    """All of them: `bench/stalls.py`."""
    (attacked,) = attack_each(tmp_path, [attack])
    assert attacked.turn_s < TURN_SECONDS_MAX
    assert attacked.growth_bytes < ATTACKED_BYTES_MAX
