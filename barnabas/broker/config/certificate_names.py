"""Principal of a client certificate: its subject as Java's X500Principal.getName prints it (RFC 2253), and ssl.principal.mapping.rules as in
Kafka's SslPrincipalMapper: RULE:pattern/replacement/[LU] or DEFAULT, separated by commas; the first pattern that matches the whole name wins.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.config.java_patterns import check_references, java_pattern, replaced
from barnabas.errors import BarnabasError

NAME_CHARS_MAX: Final = 4_096
RULES_CHARS_MAX: Final = 16_384
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_TEXTS: Final = frozenset(
    {0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E}
)  # string types; Java reads the bytes of all as UTF-8
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*(?:,\s*|$)")

_VERSION_TAG: Final = 0xA0
_UTC_TIME_TAG: Final = 0x17  # two digits of the year; otherwise GeneralizedTime, with four
_LENGTH_BYTES_MAX: Final = 3


class CertificateNameError(BarnabasError):
    """A certificate without a usable name, or one that no rule matches."""


# -- the subject


def subject_name(certificate: bytes) -> str:
    """The subject of a DER certificate. Raises CertificateNameError for malformed bytes or a name that is too long."""
    try:
        name = _name(_subject(certificate))
    except (IndexError, ValueError) as error:
        raise CertificateNameError(f"the subject cannot be read: {type(error).__name__}") from None
    if len(name) > NAME_CHARS_MAX:
        raise CertificateNameError(f"a subject of {len(name)} characters, allowed are {NAME_CHARS_MAX}")
    return name


def _subject(certificate: bytes) -> bytes:
    return certificate_fields(certificate)[4].value  # serial number, signature, issuer, validity, subject


def _name(subject: bytes) -> str:
    """RFC 2253 reverses the order. Types without a keyword are a dotted number with the value in hex."""
    return ",".join(
        "+".join(_attribute(attribute.value) for attribute in elements(part.value))
        for part in reversed(elements(subject))
    )


def _attribute(data: bytes) -> str:
    kind, value = elements(data)
    dotted = _dotted(kind.value)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or dotted}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.value.decode('utf-8', 'replace'))}"


def _dotted(data: bytes) -> str:
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    begin = len(text) - len(text.lstrip(" \r"))
    end = len(text.rstrip(" \r"))
    out = []
    for at, character in enumerate(text):
        outside = not begin <= at < end
        if character == "\0":
            out.append("\\00")
        else:
            out.append(f"\\{character}" if character in _ESCAPED or outside else character)
    return "".join(out)


# -- the rules


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None  # None: DEFAULT
    replacement: str
    case: str

    def applied(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = replaced(self.pattern, self.replacement, name)
        return {"L": found.lower, "U": found.upper}.get(self.case, lambda: found)()


def mapping_rules(text: str) -> Callable[[str], str]:
    """Maps a subject to a principal's name; raises CertificateNameError if no rule matches. Raises ValueError for malformed rules."""
    rules = _parsed(text)

    def map_name(name: str) -> str:
        for rule in rules:
            found = rule.applied(name)
            if found is not None:
                return found
        raise CertificateNameError(f"no rule of ssl.principal.mapping.rules matches {name!r}")

    return map_name


def check_mapping_rules(value: object) -> str | None:
    """An error text; None if valid."""
    try:
        _parsed(str(value))
    except ValueError as error:
        return str(error)
    return None


def _parsed(text: str) -> list[_Rule]:
    if len(text) > RULES_CHARS_MAX:
        raise ValueError(f"{len(text)} characters, allowed are {RULES_CHARS_MAX}")
    text = text.strip()
    if not text:
        raise ValueError("write RULE:pattern/replacement/[LU] or DEFAULT")
    rules = []
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        end = None if found is None else _SEPARATOR.match(text, found.end())
        if found is None or end is None:
            raise ValueError(f"write RULE:pattern/replacement/[LU] or DEFAULT at {text[at : at + 40]!r}")
        at = end.end()
        if found[1]:
            rules.append(_Rule(None, "", ""))
            continue
        pattern = java_pattern(found[2])
        check_references(pattern, found[3])
        rules.append(_Rule(pattern, found[3], found[4]))
    return rules


class Element(NamedTuple):
    """One element of DER."""

    tag: int
    value: bytes
    whole: bytes  # with tag and length


def elements(data: bytes) -> list[Element]:
    """The DER elements of a constructed value. Raises IndexError, ValueError."""
    found = []
    at = 0
    while at < len(data):
        begin, tag, size = at, data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            if not 0 < count <= _LENGTH_BYTES_MAX:
                raise ValueError("length")
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data):
            raise ValueError("length")
        found.append(Element(tag, data[at : at + size], data[begin : at + size]))
        at += size
    return found


def certificate_fields(certificate: bytes) -> list[Element]:
    """Without the version: serial number, signature, issuer, validity, subject and more. Raises IndexError, ValueError."""
    fields = elements(elements(elements(certificate)[0].value)[0].value)
    return fields[1:] if fields[0].tag == _VERSION_TAG else fields


def validity(certificate: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    """Not before and not after. Raises IndexError, ValueError."""
    begin, end = elements(certificate_fields(certificate)[3].value)
    return _time(begin), _time(end)


def _time(element: Element) -> datetime.datetime:
    text = element.value.decode("ascii")
    if element.tag == _UTC_TIME_TAG:  # RFC 5280: 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)
