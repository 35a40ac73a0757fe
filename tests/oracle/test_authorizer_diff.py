"""The authorizer's golden answers are those that Kafka's StandardAuthorizer gives today. The unit tests compare ours with them."""

from __future__ import annotations

import json

from tests.support.oracle.authorizer_worlds import GOLDEN, kafka_answers
from tests.support.oracle.real_kafka import needs_java


def test_golden_answers_are_those_of_kafka(kafka: str) -> None:
    needs_java()
    assert kafka_answers() == json.loads(GOLDEN.read_text())
