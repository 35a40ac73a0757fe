r"""How `consume` prints a record: its value, JSON, or a template as kcat has it.

Templates: %t topic, %p partition, %o offset, %k key, %K its length (-1 for null), %s value, %S its length, %T timestamp in ms,
%h headers, %% a percent sign; \n \t \r \0 \\ \xHH. A null key or value is empty.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from barnabas.cli.arguments import unescaped
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.record_json import readable, timestamp_type_name
from barnabas.client.types import RawRecord, Record
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.records import CONTROL_ABORT, CONTROL_COMMIT, read_control
from barnabas.protocol.records import Record as LogRecord

__all__ = ["Decode", "Read", "Shown", "as_json", "as_template", "as_values", "control_of"]

Decode = Literal["utf-8", "hex", "base64", "json"]
Read = Record[bytes | None, bytes | None] | RawRecord
Shown = Callable[[Sequence[Read]], list[bytes]]  # the text of each record

_CONTROL_NAMES: Final = {CONTROL_ABORT: "ABORT", CONTROL_COMMIT: "COMMIT"}
_TOKEN: Final = re.compile(r"%(.?)", re.DOTALL)


def control_of(record: Read) -> dict[str, Any] | None:
    """Type and coordinator epoch of a control record; None for other records."""
    if not isinstance(record, RawRecord) or not record.control:
        return None
    try:
        found = read_control(LogRecord(record.offset, record.timestamp, record.key, record.value, record.headers))
    except RemoteProtocolError:
        return {"type": "UNKNOWN", "coordinator_epoch": -1}
    return {"type": _CONTROL_NAMES.get(found.type, str(found.type)), "coordinator_epoch": found.coordinator_epoch}


# -- decoders ----------------------------------------------------------------------------------------------------------


def _text(data: bytes | None, decode: Decode | None, indent: int | None) -> bytes:
    """Bytes to print. What is not JSON is printed as it is."""
    if data is None:
        return b""
    match decode:
        case "hex":
            return data.hex().encode()
        case "base64":
            return base64.b64encode(data)
        case "utf-8":
            return data.decode(errors="replace").encode()
        case "json":
            try:
                return _dumped(json.loads(data), indent)
            except (ValueError, RecursionError):
                return data
        case _:
            return data


def _value(data: bytes | None, decode: Decode | None) -> Any:
    """A JSON value. What is not JSON is text or base64, as without a decoder."""
    if data is None:
        return None
    match decode:
        case "hex":
            return data.hex()
        case "base64":
            return base64.b64encode(data).decode()
        case "utf-8":
            return data.decode(errors="replace")
        case "json":
            try:
                return json.loads(data)
            except (ValueError, RecursionError):
                return readable(data)
        case _:
            return readable(data)


def _dumped(document: Any, indent: int | None) -> bytes:
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators)
    return text.encode("utf-8", "surrogatepass")


# -- formats -----------------------------------------------------------------------------------------------------------


def as_values(
    decode: Decode | None, decode_key: Decode | None, *, print_key: bool = False, indent: int | None = None
) -> Shown:
    """Each value on a line; with `print_key` after its key and a tab. A null key is printed as "null"."""

    def only_values(records: Sequence[Read]) -> list[bytes]:
        return [b"%b\n" % (record[3] or b"") for record in records]

    def all_parts(records: Sequence[Read]) -> list[bytes]:
        lines = []
        for record in records:
            control = control_of(record)
            if control is not None and isinstance(record, RawRecord):
                lines.append(
                    b"[%b producer id %d, producer epoch %d, coordinator epoch %d]\n"
                    % (
                        control["type"].encode(),
                        record.producer_id,
                        record.producer_epoch,
                        control["coordinator_epoch"],
                    )
                )
                continue
            line = _text(record.value, decode, indent) + b"\n"
            if print_key:
                key = b"null" if record.key is None else _text(record.key, decode_key, None)
                line = key + b"\t" + line
            lines.append(line)
        return lines

    def shown(records: Sequence[Read]) -> list[bytes]:
        simple = decode is None and not print_key and bool(records) and not isinstance(records[0], RawRecord)
        return only_values(records) if simple else all_parts(records)

    return shown


def as_json(decode: Decode | None, decode_key: Decode | None, *, indent: int | None = None) -> Shown:
    """Each record as a JSON object, on one line unless `indent` is given. `record_json` describes its shape."""

    def one(record: Read) -> bytes:
        control = control_of(record)
        document: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": timestamp_type_name(record.timestamp_type),
            "key": None if control else _value(record.key, decode_key),
            "value": None if control else _value(record.value, decode),
            "headers": [[_header_name(name), readable(value)] for name, value in record.headers],
        }
        if isinstance(record, RawRecord):
            document |= {
                "transactional": record.transactional,
                "producer_id": record.producer_id,
                "producer_epoch": record.producer_epoch,
                "control": control,
            }
        return _dumped(document, indent) + b"\n"

    return lambda records: [one(record) for record in records]


def _header_name(name: str) -> Any:
    return readable(name.encode("utf-8", "surrogateescape"))


def as_template(template: str, decode: Decode | None, decode_key: Decode | None) -> Shown:
    """Each record by a template.

    Raises:
        WrongCall: an unknown token or escape.
    """

    def length(data: bytes | None) -> bytes:
        return b"%d" % (-1 if data is None else len(data))

    tokens: dict[str, Callable[[Read], bytes]] = {
        "t": lambda r: r.topic.encode(),
        "p": lambda r: b"%d" % r.partition,
        "o": lambda r: b"%d" % r.offset,
        "k": lambda r: _text(r.key, decode_key, None),
        "K": lambda r: length(r.key),
        "s": lambda r: _text(r.value, decode, None),
        "S": lambda r: length(r.value),
        "T": lambda r: b"%d" % r.timestamp,
        "h": lambda r: b",".join(_header(name, value) for name, value in r.headers),
    }
    parts: list[Callable[[Read], bytes]] = []
    pieces: list[bytes] = []  # the text between the tokens
    text, place = "", 0
    for found in _TOKEN.finditer(template):
        text += template[place : found.start()]
        place = found.end()
        token = found.group(1)
        if token == "%":
            text += "%"
            continue
        if token not in tokens:
            known = " ".join(f"%{each}" for each in tokens)
            raise WrongCall(f"--format {template!r}: unknown token %{token}; known are {known} %%")
        pieces.append(unescaped(text, "--format"))
        parts.append(tokens[token])
        text = ""
    last = unescaped(text + template[place:], "--format")

    def one(record: Read) -> bytes:
        line = [piece for pair in zip(pieces, (part(record) for part in parts), strict=True) for piece in pair]
        line.append(last)
        return b"".join(line)

    return lambda records: [one(record) for record in records]


def _header(name: str, value: bytes | None) -> bytes:
    return b"%b=%b" % (name.encode("utf-8", "surrogateescape"), b"NULL" if value is None else value)
