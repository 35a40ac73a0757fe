"""Parser of Java properties files. The last of equal keys wins."""

from __future__ import annotations

from collections.abc import Iterator


def parse_properties(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split_pair(line)
        pairs[_unescape(key)] = _unescape(value)
    return pairs


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        line = pending + line
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending = line[:-1]
            continue
        pending = ""
        yield line
    if pending:
        yield pending


def _split_pair(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line):
        if line[at] == "\\":
            at += 2
            continue
        if line[at] in "=: \t":
            break
        at += 1
    key, rest = line[:at], line[at:].lstrip(" \t")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t")
    return key, rest


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    characters = iter(range(len(text)))
    for at in characters:
        if text[at] != "\\" or at + 1 == len(text):
            out.append(text[at])
            continue
        escaped = text[next(characters)]
        code = text[at + 2 : at + 6]
        if escaped == "u" and len(code) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in code):
            out.append(chr(int(code, 16)))
            for _ in range(4):
                next(characters)
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
