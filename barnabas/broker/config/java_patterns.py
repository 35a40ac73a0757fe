"""Java's regular expressions and replacements in settings, on Python's backtracking `re`: only for patterns of the configuration and short texts."""

from __future__ import annotations

import re
from typing import Final

_JAVA_GROUP: Final = re.compile(r"\(\?<(?![=!])")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|\$\{([A-Za-z][A-Za-z0-9]*)\}|(\$)", re.DOTALL)


def java_pattern(text: str) -> re.Pattern[str]:
    """Raises ValueError if malformed or not supported by Python's `re`."""
    try:
        return re.compile(_JAVA_GROUP.sub("(?P<", text))
    except re.error as error:
        raise ValueError(f"the pattern {text!r} is wrong: {error}") from None


def check_references(pattern: re.Pattern[str], replacement: str) -> None:
    """Raises ValueError if the replacement names a group that the pattern lacks."""
    for found in _REFERENCE.finditer(replacement):
        named = found[3] is not None and found[3] not in pattern.groupindex
        if found[4] or named or (found[2] and not pattern.groups and int(found[2][0])):
            raise ValueError(f"the replacement {replacement!r} names a group that the pattern does not have")


def replaced(pattern: re.Pattern[str], replacement: str, text: str, *, first_only: bool = False) -> str:
    """Java's replaceAll or replaceFirst."""

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
    """The group of a reference and the remaining digits: Java takes as many digits as name a group."""
    size = 1
    while size < len(digits) and int(digits[: size + 1]) <= groups:
        size += 1
    return int(digits[:size]), digits[size:]
