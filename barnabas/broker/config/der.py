"""Reader of DER certificates, from OpenSSL or the node's own key store."""

from __future__ import annotations

import datetime
from typing import Final, NamedTuple

_VERSION_TAG: Final = 0xA0
_UTC_TIME_TAG: Final = 0x17  # two digits of the year; otherwise GeneralizedTime, with four
_LENGTH_BYTES_MAX: Final = 3


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
