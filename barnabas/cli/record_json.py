"""Records as JSON lines: what `consume --json` writes and `produce --json` reads.

Keys, values and header values are text where they are UTF-8, null, or {"base64": "…"} for other bytes. `headers` is a list of
[name, value]. `offset`, `timestamp_type` and `topic` are written and, since the broker and the command decide them, not read.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from barnabas.client.types import Headers

TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")

_READ: Final = ("partition", "timestamp", "key", "value", "headers")
_IGNORED: Final = ("topic", "offset", "timestamp_type", "transactional", "producer_id", "producer_epoch")
_INT64_MAX: Final = (1 << 63) - 1


class BadRecord(ValueError):
    """A line of input is not a record; the text says why."""


# Partition, timestamp, key, value, headers.
JsonRecord = tuple[int | None, int | None, bytes | None, bytes | None, Headers]

compact: Final[Callable[[Any], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def timestamp_type_name(timestamp_type: int) -> str:
    """Kafka's name of a timestamp type."""
    return TIMESTAMP_TYPES[timestamp_type]


def readable(data: bytes | None) -> str | dict[str, str] | None:
    """Text where the bytes are UTF-8; other bytes as an object with their base64 form."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def header_pairs(headers: Headers) -> list[list[Any]]:
    """The JSON form of headers."""
    return [[readable(name.encode("utf-8", "surrogateescape")), readable(value)] for name, value in headers]


def record_from_json(line: bytes) -> JsonRecord:
    """Reads one line. Raises BadRecord: it is not a record in JSON."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRecord(f"a record is a JSON object, not {_kind(found)}")
    if found.get("control"):
        raise BadRecord("a control record cannot be written")
    for name in found:
        if name not in _READ and name not in _IGNORED and name != "control":
            from difflib import get_close_matches  # here, because its import takes longer than a small command

            near = get_close_matches(name, _READ, 1)
            raise BadRecord(f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if "value" not in found:
        raise BadRecord('no "value"; a tombstone has "value": null')
    partition = _number(found, "partition", (1 << 31) - 1)
    return (
        None if partition == -1 else partition,
        _number(found, "timestamp", _INT64_MAX),
        _data(found.get("key"), "key"),
        _data(found["value"], "value"),
        _headers(found.get("headers")),
    )


def _number(found: dict[str, Any], name: str, highest: int) -> int | None:
    number = found.get(name)
    if number is None:
        return None
    if type(number) is not int or not -1 <= number <= highest:
        raise BadRecord(f"{name} must be a whole number from -1 to {highest}, not {compact(number)}")
    return number


def _data(data: Any, name: str) -> bytes | None:
    """Text, null and {"base64": …} are bytes; any other JSON becomes its own text."""
    if data is None:
        return None
    if isinstance(data, str):
        return _encoded(data, name)
    if isinstance(data, dict) and data.keys() == {"base64"} and isinstance(data["base64"], str):
        try:
            return base64.b64decode(data["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadRecord(f"{name} is not valid base64") from None
    return _encoded(compact(data), name)


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRecord(f'{name} is not valid Unicode; write bytes as {{"base64": "…"}}') from None


def _headers(found: Any) -> Sequence[tuple[str, bytes | None]]:
    if not found:
        return ()
    pairs = list(found.items()) if isinstance(found, dict) else found
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise BadRecord("headers must be a list of [name, value]")
    headers = []
    for name, value in pairs:
        raw = _data(name, "the name of a header")
        if raw is None or not isinstance(name, str | dict):
            raise BadRecord("the name of a header must be text")
        headers.append((raw.decode("utf-8", "surrogateescape"), _data(value, f"header {name!r}")))
    return tuple(headers)


def _kind(found: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(found), "a number")
