"""JAAS parser for `sasl.jaas.config`: exactly one login module with options, as in Kafka.
No error and no repr contains the value of an option: values are secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from barnabas.errors import BarnabasError

JAAS_LENGTH_MAX: Final = 1024 * 1024  # characters of one text: 10,000 users of PLAIN fit
OPTIONS_MAX: Final = 20_000  # of one login module
SHOWN_LENGTH: Final = 80  # characters of a name that an error quotes
FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
SHAPE: Final = 'write MODULE required key="value" …;'

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)"""
    r"""|(?P<mark>[=;])"""
    r"""|"(?P<double>(?:[^"\\\n]|\\[^\n])*)\""""
    r"""|'(?P<single>(?:[^'\\\n]|\\[^\n])*)'"""
    r"""|(?P<word>(?:[^\s=;"'/]|/(?![/*]))+)"""
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final[Mapping[str, str]] = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
}


class JaasError(BarnabasError):
    """A malformed JAAS text. The message quotes no value."""


@dataclass(frozen=True, slots=True, repr=False)
class Jaas:
    """A login module: Java class, flag (without effect in Kafka) and options, which include secrets."""

    module: str
    flag: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        names = " ".join(f"{name}=[hidden]" for name in self.options)
        return f"Jaas({self.module} {self.flag} {names})"

    @property
    def class_name(self) -> str:
        return self.module.rpartition(".")[2]


class _Token(NamedTuple):
    kind: str  # word, quoted, mark or end
    text: str
    position: int


def parse_jaas(text: str) -> Jaas:
    """Parses `MODULE FLAG key="value" …;` with the escapes of Java's StreamTokenizer. Raises JaasError."""
    if len(text) > JAAS_LENGTH_MAX:
        raise JaasError(f"the JAAS text has {len(text)} characters, allowed are {JAAS_LENGTH_MAX}")
    tokens = _Tokens(text)
    module = tokens.name("the class of a login module")
    flag = tokens.name(f"a control flag after {_shown(module)} ({', '.join(sorted(FLAGS))})")
    if flag.lower() not in FLAGS:
        raise JaasError(f"the word after {_shown(module)} is no control flag ({', '.join(sorted(FLAGS))}); {SHAPE}")
    options: dict[str, str] = {}
    while (token := tokens.take()) != ("mark", ";", token.position):
        if token.kind not in ("word", "quoted"):
            what = "the JAAS text ends" if token.kind == "end" else f"there is a {token.text!r}"
            raise JaasError(f"{what} at character {token.position} where an option or ';' is expected; {SHAPE}")
        if tokens.take()[:2] != ("mark", "="):
            # Not quoted in the error: a word without '=' may be part of a secret that lacks its quotes.
            raise JaasError(f"the option at character {token.position} has no '='; {SHAPE}")
        options[token.text] = tokens.name(f"a value of the option at character {token.position}")
        if len(options) > OPTIONS_MAX:
            raise JaasError(f"{_shown(module)} has more than {OPTIONS_MAX} options")
    rest = tokens.take()
    if rest.kind != "end":
        raise JaasError(
            f"there is more text after the ';' at character {rest.position}: exactly one login module is allowed"
        )
    return Jaas(module, flag.lower(), MappingProxyType(options))


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def take(self) -> _Token:
        while self._at < len(self._text):
            position = self._at
            found = _TOKEN.match(self._text, position)
            if found is None:
                raise JaasError(f"a quoted text or a comment that begins at character {position} has no end; {SHAPE}")
            self._at = found.end()
            kind = found.lastgroup or ""
            if kind == "space":
                continue
            body = found.group(kind)
            if kind in ("double", "single"):
                return _Token("quoted", _ESCAPE.sub(_unescaped, body), position)
            return _Token(kind, body, position)
        return _Token("end", "", self._at)

    def name(self, what: str) -> str:
        token = self.take()
        if token.kind not in ("word", "quoted"):
            raise JaasError(f"{what} is missing at character {token.position}; {SHAPE}")
        return token.text


def _unescaped(found: re.Match[str]) -> str:
    escaped = found.group(1)
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _ESCAPED.get(escaped, escaped)


def _shown(name: str) -> str:
    if "." not in name:
        return "the first word"  # it could be a password, set without its login module
    return repr(name if len(name) <= SHOWN_LENGTH else f"{name[:SHOWN_LENGTH]}…")
