"""Quotas of clients: which changes the controller takes, and what it writes. tests/oracle/test_quotas_diff.py has Kafka's answers."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.controller.core.decision import RECORDS_MAX
from barnabas.broker.controller.core.quotas import alter_client_quotas
from barnabas.broker.image.image import MetadataImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.quotas import AlterClientQuotasRequest
from tests.support.broker.metadata_images import cluster, replayed, view
from tests.support.oracle.quota_requests import Change, Part, entry

ALICE: Part = ("user", "alice")
APP: Part = ("client-id", "app")
BOTH = (("client-id", "app"), ("user", "alice"))


def decide(image: MetadataImage, *entries: Any, validate_only: bool = False) -> Any:
    return alter_client_quotas(
        view(image), AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    )


def altered(image: MetadataImage, parts: list[Part], *changes: Change) -> MetadataImage:
    decision = decide(image, entry(parts, *changes))
    assert [each.error_code for each in decision.answer.entries] == [0]
    return replayed(image, decision.records)


def test_quotas_are_set_changed_and_removed() -> None:
    image = altered(cluster((1,)), [ALICE, APP], ("producer_byte_rate", 10.0), ("request_percentage", 0.5))
    assert image.quotas == {BOTH: {"producer_byte_rate": 10.0, "request_percentage": 0.5}}
    image = altered(image, [APP, ALICE], ("producer_byte_rate", 20.0), ("consumer_byte_rate", None))
    assert image.quotas == {BOTH: {"producer_byte_rate": 20.0, "request_percentage": 0.5}}
    image = altered(image, [("ip", None)], ("connection_creation_rate", 3.0))
    image = altered(image, [ALICE, APP], ("producer_byte_rate", None), ("request_percentage", None))
    assert image.quotas == {(("ip", None),): {"connection_creation_rate": 3.0}}


def test_only_real_changes_are_written() -> None:
    image = altered(cluster((1,)), [ALICE], ("producer_byte_rate", 10.0))
    assert decide(image, entry([ALICE], ("producer_byte_rate", 10.0), ("consumer_byte_rate", None))).records == []
    decision = decide(image, entry([ALICE], ("producer_byte_rate", 11.0)), validate_only=True)
    assert (decision.answer.entries[0].error_code, decision.records) == (0, [])


def test_an_entity_with_one_wrong_change_keeps_its_quotas_and_others_change() -> None:
    decision = decide(
        cluster((1,)),
        entry([ALICE], ("producer_byte_rate", 10.0), ("nope", 1.0)),
        entry([APP], ("consumer_byte_rate", 1.0)),
    )
    assert [each.error_code for each in decision.answer.entries] == [ErrorCode.INVALID_REQUEST, 0]
    assert replayed(cluster((1,)), decision.records).quotas == {(APP,): {"consumer_byte_rate": 1.0}}


@pytest.mark.parametrize("address", ["10.0.0.0/8", "localhost", "1" * 1_000_000, "1.2.3", " 1.2.3.4", "::g"])
def test_the_name_of_an_ip_is_an_address(address: str) -> None:
    (result,) = decide(cluster((1,)), entry([("ip", address)], ("connection_creation_rate", 1.0))).answer.entries
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_one_request_has_a_limited_number_of_records() -> None:
    entries = [entry([("user", str(number))], ("consumer_byte_rate", 1.0)) for number in range(RECORDS_MAX + 1)]
    with pytest.raises(BrokerError) as refused:
        decide(cluster((1,)), *entries)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
