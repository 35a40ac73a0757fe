"""Java's regular expressions in settings: patterns, and replacements with references to groups.

Patterns run on Python's `re`, which backtracks: they come from the configuration only, and callers limit the texts.
"""

from __future__ import annotations

import re
from typing import Final

_JAVA_GROUP: Final = re.compile(r"\(\?<(?![=!])")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|\$\{([A-Za-z][A-Za-z0-9]*)\}|(\$)", re.DOTALL)


def java_pattern(text: str) -> re.Pattern[str]:
    """Compiles a pattern of Java.

    Raises:
        ValueError: it is malformed, or has something that Python's `re` lacks.
    """
    try:
        return re.compile(_JAVA_GROUP.sub("(?P<", text))
    except re.error as error:
        raise ValueError(f"the pattern {text!r} is wrong: {error}") from None


def check_references(pattern: re.Pattern[str], replacement: str) -> None:
    """Checks that the pattern has the groups that a replacement names. Raises ValueError."""
    for found in _REFERENCE.finditer(replacement):
        named = found[3] is not None and found[3] not in pattern.groupindex
        if found[4] or named or (found[2] and not pattern.groups and int(found[2][0])):
            raise ValueError(f"the replacement {replacement!r} names a group that the pattern does not have")


def replaced(pattern: re.Pattern[str], replacement: str, text: str, *, first_only: bool = False) -> str:
    """The text with matches replaced, as by replaceAll or replaceFirst of Java."""

    def expanded(match: re.Match[str]) -> str:
        def part(found: re.Match[str]) -> str:
            if found[1] is not None:
                return str(found[1])
            if found[3] is not None:
                return match[found[3]] or ""
            group, rest = _group(found[2], match.re.groups)
            return f"${group}{rest}" if group > match.re.groups else (match[group] or "") + rest

        return _REFERENCE.sub(part, replacement)

    return pattern.sub(expanded, text, count=1 if first_only else 0)


def _group(digits: str, groups: int) -> tuple[int, str]:
    """The group that a reference names, and the digits that follow it: Java takes as many digits as name a group."""
    size = 1
    while size < len(digits) and int(digits[: size + 1]) <= groups:
        size += 1
    return int(digits[:size]), digits[size:]
