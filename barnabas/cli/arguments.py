r"""Arguments of `produce` and `consume`: escapes as kcat has them (\t, \n, \r, \0, \\, \xHH), and times."""

from __future__ import annotations

import re
from typing import Final

from barnabas.cli.client_properties import WrongCall

_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_SIMPLE: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_MS_MAX: Final = (1 << 63) - 1


def unescaped(text: str, option: str) -> bytes:
    """The bytes of an argument. Raises WrongCall: an escape is not known."""

    def replaced(found: re.Match[bytes]) -> bytes:
        code = found.group(1)
        if len(code) == 3:
            return bytes.fromhex(code[1:].decode())
        if code not in _SIMPLE:
            shown = found.group(0).decode(errors="replace")
            raise WrongCall(rf"{option} {text}: unknown escape {shown}; known are \t \n \r \0 \\ \xHH")
        return _SIMPLE[code]

    return _ESCAPE.sub(replaced, text.encode("utf-8", "surrogateescape"))


def time_argument(text: str, option: str, now_ms: int | None = None) -> int:
    """Returns a time in ms since the Unix epoch: that number itself, ISO 8601, or (with `now_ms`) a duration before now.

    Raises WrongCall: the text is none of these.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= _MS_MAX:
        return int(text)
    from barnabas.cli.times import parse_duration, parse_time  # here, because few calls name a time

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
