"""Durations and times as a user types them."""

from __future__ import annotations

import pytest

from barnabas.cli.arguments import parse_duration, parse_time
from barnabas.cli.render import duration, moment


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90000),
        ("2h30m", 9000000),
        ("7d", 604800000),
        ("250ms", 250),
        ("0s", 0),
        ("1.5s", 1500),
        ("PT1H", 3600000),
        ("P1DT2M", 86520000),
        ("P1W", 604800000),
        ("PT0.5S", 500),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "7", "h", "-1s", "1 h", "P", "PT", "P1H", "1x", "9" * 30 + "d"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|too long"):
        parse_duration(text)


def test_times() -> None:
    assert parse_time("1970-01-01T00:00:01Z") == 1_000
    assert parse_time("1970-01-01T01:00:00.250+01:00") == 250
    assert parse_time("2001-01-01") == parse_time("2001-01-01T00:00:00")
    for text in ("", "yesterday", "2001-13-01", "12"):
        with pytest.raises(ValueError, match="is not a time"):
            parse_time(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (-5, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (59999, "59 s"),
        (60000, "1 min"),
        (185000, "3 min 5 s"),
        (7800000, "2 h 10 min"),
        (86400000, "1 d"),
        (350000000, "4 d 1 h"),
    ],
)
def test_durations_are_printed_with_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_times_are_printed_in_utc() -> None:
    assert moment(1_000_000_000_007) == "2001-09-09T01:46:40.007Z"
