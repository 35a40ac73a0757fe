"""Quotas of clients: which one applies, who shares it, and the bound on what is remembered."""

from __future__ import annotations

import pytest

from barnabas.broker.image.image import QuotaEntity
from barnabas.broker.quotas import client_quotas
from barnabas.broker.quotas.client_quotas import ClientBound, QuotaKind, QuotaMeter, QuotaTable
from barnabas.broker.quotas.connection_rates import ConnectionRates

LEVELS: list[tuple[str | None, str | None]] = [
    ("alice", "app"),
    ("alice", None),
    ("alice", ""),
    (None, "app"),
    (None, None),
    (None, ""),
    ("", "app"),
    ("", None),
]
SHARED = [("alice", "app"), ("alice", "app"), ("alice", ""), ("alice", "app"), ("alice", "app"), ("alice", "")]
SHARED += [("", "app"), ("", "app")]


def quotas_of(entity: QuotaEntity, **values: float) -> QuotaMeter:
    quotas = QuotaMeter()
    quotas.set_quotas(entity, values)
    return quotas


@pytest.mark.parametrize("level", range(8))
def test_the_most_specific_of_eight_levels_applies(level: int) -> None:
    table = QuotaTable()
    for number in range(level, 8):
        table.set(*LEVELS[number], 100.0 + number)
    assert table.find("alice", "app") == ClientBound(*SHARED[level], 100.0 + level)
    table.set(*LEVELS[level], None)
    later = None if level == 7 else ClientBound(*SHARED[level + 1], 101.0 + level)
    assert table.find("alice", "app") == later


def test_a_client_without_client_id_has_only_quotas_of_users() -> None:
    table = QuotaTable()
    for user, client_id in LEVELS:
        table.set(user, client_id, 1.0)
    assert table.find("alice", "") == ClientBound("alice", "", 1.0)
    assert table.find("bob", "") == ClientBound("bob", "", 1.0)
    table.set(None, "", None)
    assert table.find("bob", "") is None
    assert table.find("bob", "other") == ClientBound("bob", "other", 1.0), "default user and default client id"


def test_clients_of_a_user_share_its_quota() -> None:
    quotas = quotas_of((("user", "alice"),), producer_byte_rate=1_000.0)
    assert quotas.produced("alice", "one", 6_000, 0) == 0
    assert quotas.produced("alice", "two", 6_000, 0) == 2_000
    assert quotas.produced("bob", "one", 1_000_000, 0) == 0


def test_each_client_id_has_the_default_quota_for_itself() -> None:
    quotas = quotas_of((("client-id", None),), consumer_byte_rate=1_000.0)
    assert quotas.fetched("alice", "one", 12_000, 0) == 2_000
    quotas.not_fetched("alice", "one", 12_000, 0)
    assert quotas.fetched("bob", "one", 9_000, 0) == 0
    assert quotas.fetched("bob", "two", 9_000, 0) == 0
    assert quotas.fetch_bytes_max("bob", "two") == 10_000
    assert quotas.fetch_bytes_max("bob", "") is None


def test_request_time_is_a_share_of_one_processor_and_throttles_a_sample_at_most() -> None:
    quotas = quotas_of((("user", None),), request_percentage=10.0)
    assert quotas.served("alice", "", 1_000_000_000, 0) == 0  # a second of ten is 10 %
    assert quotas.served("alice", "", 50_000_000, 0) == 500
    assert quotas.served("alice", "", 5_000_000_000, 0) == 1_000


def test_mutations_are_refused_while_the_bucket_is_overdrawn() -> None:
    quotas = quotas_of((("user", "alice"),), controller_mutation_rate=1.0)
    assert quotas.may_mutate("alice", "", 0) == 0
    assert quotas.mutated("alice", "", 15, 0) == 4_000
    assert quotas.may_mutate("alice", "x", 1_000) == 3_000
    assert quotas.may_mutate("alice", "", 4_000) == 0
    assert quotas.may_mutate("bob", "", 0) == 0


def test_a_removed_quota_no_longer_applies() -> None:
    entity = (("user", "alice"),)
    quotas = quotas_of(entity, producer_byte_rate=1.0)
    assert quotas.produced("alice", "", 1_000, 0) > 0
    quotas.set_quotas(entity, {"consumer_byte_rate": 1.0})
    assert quotas.produced("alice", "", 1_000, 0) == 0
    assert quotas.configured
    quotas.set_quotas(entity, {})
    assert not quotas.configured


def test_a_client_that_invents_client_ids_takes_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "TRACKED_MAX", 100)
    quotas = quotas_of((("client-id", None),), producer_byte_rate=1_000.0)
    for number in range(1_000):
        quotas.produced("alice", f"invented-{number}", 20_000, number)
        assert quotas.produced("bob", "steady", 5, number) == 0
    used = list(quotas.usage(1_000, 1_000))
    assert len(used) == 100
    assert "steady" in {each.client_id for each in used}, "the least recently used is forgotten"
    assert {each.kind for each in used} == {QuotaKind.PRODUCE}


def test_clients_that_are_idle_for_an_hour_are_forgotten() -> None:
    quotas = quotas_of((("client-id", None),), producer_byte_rate=1_000.0)
    quotas.produced("alice", "old", 1, 0)
    quotas.produced("alice", "new", 1, 3_600_000)
    assert [each.client_id for each in quotas.usage(3_600_000, 9)] == ["new"]


def test_usage_tells_rates_and_average_throttle_times() -> None:
    quotas = quotas_of((("user", "alice"),), producer_byte_rate=1_000.0)
    quotas.produced("alice", "", 12_000, 0)
    quotas.produced("alice", "", 2_000, 0)
    (used,) = quotas.usage(0, 9)
    assert used == (QuotaKind.PRODUCE, "alice", "", 1_400.0, None, 3_000.0)


def test_an_address_may_connect_so_often() -> None:
    rates = ConnectionRates()
    assert not rates.configured
    rates.set_limit("10.0.0.1", 1.0)
    for _ in range(10):
        assert rates.arrived("10.0.0.1", 0) == 0
    assert rates.arrived("::ffff:10.0.0.1", 0) == 1_000, "one sample at most; the same address"
    assert rates.arrived("10.0.0.1", 11_000) == 0
    assert rates.arrived("10.0.0.2", 0) == 0
    rates.set_limit(None, 1_000_000.0)
    rates.set_limit("10.0.0.1", None)
    assert rates.arrived("10.0.0.1", 0) == 0


def test_addresses_are_compared_in_their_canonical_form() -> None:
    rates = ConnectionRates()
    rates.set_limit("0:0:0:0:0:0:0:1", 0.1)
    assert [rates.arrived("::1", 0) for _ in range(2)] == [0, 1_000]
