r"""Values that a user types: key=value, rates, durations and times, and escapes as kcat has them (\t, \n, \r, \0, \\, \xHH).

Patterns are compiled at their first use: few calls need one.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Final

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall

Settings = Annotated[tuple[str, ...], Parameter(help="key=value, Kafka's config names; may be repeated.")]

DURATION_MS_MAX: Final = 2**53
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SHORT_PART: Final = r"(\d+(?:\.\d+)?)(ms|[smhdw])"  # of 2h30m
_ISO: Final = r"P(?=.)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
_ISO_UNITS: Final = ("w", "d", "h", "m", "s")
_RATE_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_ESCAPED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_MS_MAX: Final = (1 << 63) - 1


def key_values(assignments: tuple[str, ...]) -> dict[str, str]:
    """Parses `key=value` arguments into a mapping; raises WrongCall if one has another form."""
    for assignment in assignments:
        if "=" not in assignment:
            raise WrongCall(f"{assignment!r} is not key=value")
        name, _, value = assignment.partition("=")
        if value.lstrip("-").isdecimal():
            continue
        for suffix, read, unit in ((".ms", parse_duration, "milliseconds"), (".bytes", as_rate, "bytes")):
            if name.endswith(suffix):
                try:
                    number = read(value)
                except ValueError:
                    continue
                raise WrongCall(f"{assignment}: its unit is {unit}; write {name}={number}")
    return dict(assignment.split("=", 1) for assignment in assignments)


def as_rate(text: str) -> int:
    """Reads bytes a second, such as 50000000 or 50M (K, M and G are powers of 1,024).

    Raises WrongCall: it is no positive number of this form.
    """
    found = re.fullmatch(r"(\d{1,15})([KMG]?)", text, re.ASCII)
    rate = int(found[1]) * _RATE_UNITS[found[2]] if found else 0
    if not 0 < rate < 2**63:
        raise WrongCall(f"{text!r} is no number of bytes a second, such as 50000000 or 50M")
    return rate


def parse_duration(text: str) -> int:
    """Returns a duration such as 90s, 2h30m, 7d or PT1H in ms, at least 0. Raises ValueError: the text is not a duration."""
    iso = re.fullmatch(_ISO, text, re.IGNORECASE)
    if iso is not None:
        parts = [(number, unit) for number, unit in zip(iso.groups(), _ISO_UNITS, strict=True) if number]
    elif re.fullmatch(f"(?:{_SHORT_PART})+", text):
        parts = re.findall(_SHORT_PART, text)
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


def time_argument(text: str, option: str, now_ms: int | None = None) -> int:
    """Returns a time in ms since the Unix epoch: that number itself, ISO 8601, or (with `now_ms`) a duration before now.

    Raises WrongCall: the text is none of these.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= _MS_MAX:
        return int(text)
    if now_ms is not None:
        try:
            return max(0, now_ms - parse_duration(text))
        except ValueError:
            pass
    try:
        return max(0, parse_time(text))
    except ValueError:
        forms = "a time such as 2026-01-31T12:00:00Z, or ms since 1970"
        if now_ms is not None:
            forms = f"a duration such as 10m, {forms}"
        raise WrongCall(f"{option} {text!r} is not {forms}") from None


def unescaped(text: str, option: str) -> bytes:
    """The bytes of an argument. Raises WrongCall: an escape is not known."""

    def replaced(found: re.Match[bytes]) -> bytes:
        code = found.group(1)
        if len(code) == 3:
            return bytes.fromhex(code[1:].decode())
        if code not in _ESCAPED:
            shown = found.group(0).decode(errors="replace")
            raise WrongCall(rf"{option} {text}: unknown escape {shown}; known are \t \n \r \0 \\ \xHH")
        return _ESCAPED[code]

    data = text.encode("utf-8", "surrogateescape")
    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.|$)", replaced, data, flags=re.DOTALL)
