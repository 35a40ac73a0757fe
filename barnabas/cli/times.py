"""Durations and times that a user types: `90s`, `2h30m`, `7d`, `PT1H`; `2026-11-01`, `2026-11-01T08:30:00+01:00`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SHORT: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_SHORT_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_ISO: Final = re.compile(
    r"P(?=.)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_ISO_UNITS: Final = ("w", "d", "h", "m", "s")
DURATION_MS_MAX: Final = 2**53


def parse_duration(text: str) -> int:
    """Returns a duration in ms, at least 0. Raises ValueError: the text is not a duration."""
    iso = _ISO.fullmatch(text)
    if iso is not None:
        parts = [(number, unit) for number, unit in zip(iso.groups(), _ISO_UNITS, strict=True) if number]
    elif _SHORT.fullmatch(text):
        parts = _SHORT_PART.findall(text)
    else:
        raise ValueError(f"{text!r} is not a duration such as 90s, 2h30m, 7d or PT1H")
    total = sum(float(number) * _UNITS_MS[unit] for number, unit in parts)
    if total > DURATION_MS_MAX:
        raise ValueError(f"{text!r} is too long")
    return round(total)


def parse_time(text: str) -> int:
    """Returns a time (ISO 8601) in ms since the Unix epoch; without a zone it is local. Raises ValueError: the text is not a time."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time such as 2026-11-01T08:30:00 or 2026-11-01T08:30:00Z") from None
