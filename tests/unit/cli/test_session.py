"""What a command says about an error of authorization."""

from __future__ import annotations

import pytest

from barnabas.cli.session import Connection, told_reason
from barnabas.client.errors import ProducerFailed, error_for
from barnabas.errors import ErrorCode


@pytest.mark.parametrize(
    ("command", "code", "topic", "about", "grant"),
    [
        ("consume", ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders", "", "read topic:orders"),
        ("produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders", "transactional-id:till", "write topic:orders"),
        ("produce", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None, "transactional-id:till", "write transactional-id:till"),
        ("group describe", ErrorCode.GROUP_AUTHORIZATION_FAILED, None, "group:my group", "describe 'group:my group'"),
        ("group list", ErrorCode.GROUP_AUTHORIZATION_FAILED, None, "", "describe group:NAME"),
        ("acl list", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None, "", "describe cluster"),
        ("config alter", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, "topic:orders", "alter-configs topic:orders"),
    ],
)  # fmt: skip
def test_the_command_that_allows_it_is_named(
    command: str, code: ErrorCode, topic: str | None, about: str, grant: str
) -> None:
    error = ProducerFailed("the producer cannot continue")
    error.__cause__ = error_for(code, topic=topic)
    said = told_reason(command, error, about, Connection())
    assert said == f"{error}; an administrator allows it by `barnabas acl add PRINCIPAL {grant}`"


def test_other_errors_stay_as_they_are() -> None:
    error = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="orders")
    assert told_reason("consume", error, "", Connection()) == str(error)
