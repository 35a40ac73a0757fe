"""The golden answers to requests about delegation tokens are those of Kafka today. A test without Java compares ours with them."""

from __future__ import annotations

import json

import pytest

from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.token_script import GOLDEN
from tests.support.oracle.tokens_in_kafka import kafka_answers

pytestmark = pytest.mark.oracle


def test_golden_answers_are_those_of_kafka() -> None:
    needs_java()
    found = kafka_answers()
    golden = json.loads(GOLDEN.read_text())
    different = {name: (golden.get(name), answer) for name, answer in found.items() if golden.get(name) != answer}
    assert different == {}
    assert list(found) == list(golden)
