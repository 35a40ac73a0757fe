"""Values of quotas on the command line: bytes a second with units, and what is refused."""

from __future__ import annotations

import pytest

from barnabas.cli.quota import quota_value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("producer_byte_rate", "1048576", 1_048_576),
        ("producer_byte_rate", "10MB/s", 10_000_000),
        ("consumer_byte_rate", "1.5 kB/s", 1_500),
        ("consumer_byte_rate", "1KiB", 1_024),
        ("consumer_byte_rate", "2M", 2_097_152),
        ("consumer_byte_rate", "1gb/s", 1_000_000_000),
        ("request_percentage", "12.5%", 12.5),
        ("controller_mutation_rate", "0.1", 0.1),
        ("connection_creation_rate", "5/s", 5),
    ],
)
def test_a_value_with_its_unit(key: str, text: str, value: float) -> None:
    assert quota_value(key, text) == value


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("producer_byte_rate", "fast", "'fast' is not a value for producer_byte_rate, such as 10MB/s"),
        ("producer_byte_rate", "-1", "'-1' is not a value for"),
        ("producer_byte_rate", "10XB", "'10XB' is not a value for"),
        ("producer_byte_rate", "", "'' is not a value for"),
        ("producer_byte_rate", "9" * 5_000, "is not a value for"),
        ("request_percentage", "10MB/s", "is not a value for request_percentage, such as 50"),
        ("bytes", "1", "unknown quota 'bytes'; the quotas are producer_byte_rate, "),
    ],
)
def test_what_is_no_value(key: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        quota_value(key, text)
