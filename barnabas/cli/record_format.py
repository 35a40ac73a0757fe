r"""How `consume` prints a record: its value, JSON, or a template as kcat has it.

Templates: %t topic, %p partition, %o offset, %k key, %K its length (-1 for null), %s value, %S its length, %T timestamp in ms,
%h headers, %% a percent sign; \n \t \r \0 \\ \xHH. A null key or value is empty.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring
from typing import Any, Final, Literal

from barnabas.cli.arguments import unescaped
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.record_json import compact, header_pairs, readable, timestamp_type_name
from barnabas.cli.streams import printable
from barnabas.client.types import RawRecord, Record, ValueRun
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.record_codec import Record as LogRecord
from barnabas.protocol.records import CONTROL_ABORT, CONTROL_COMMIT, read_control

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
    if decode is None:
        return data
    if decode != "json":
        return str(_value(data, decode)).encode()
    try:
        return _dumped(json.loads(data), indent)
    except (ValueError, RecursionError):
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
    text = compact(document) if indent is None else json.dumps(document, ensure_ascii=False, indent=indent)
    return text.encode("utf-8", "surrogatepass")


# -- formats -----------------------------------------------------------------------------------------------------------


def as_values(
    decode: Decode | None, decode_key: Decode | None, *, print_key: bool = False, indent: int | None = None
) -> Shown:
    """Each value on a line; with `print_key` after its key and a tab. A null key is printed as "null"."""

    def only_values(records: Sequence[Read]) -> list[bytes]:
        return [b"%b\n" % (record[3] or b"") for record in records]

    def keys_and_values(records: Sequence[Read]) -> list[bytes]:
        return [b"%b\t%b\n" % (b"null" if record[2] is None else record[2], record[3] or b"") for record in records]

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

    undecoded = keys_and_values if print_key else only_values

    def shown(records: Sequence[Read]) -> list[bytes]:
        simple = decode is None and decode_key is None and bool(records) and not isinstance(records[0], RawRecord)
        return undecoded(records) if simple else all_parts(records)

    return shown


def as_lines(records: Sequence[Read | ValueRun]) -> list[bytes]:
    """Each value on a line, also those of runs: one text for each run."""
    return [
        b"%b\n" % (b"\n".join(record.values) if isinstance(record, ValueRun) else record.value or b"")
        for record in records
    ]


def for_terminal(shown: Shown) -> Shown:
    """The same text; on a terminal without control characters, except line feeds and tabs."""
    if not sys.stdout.isatty():
        return shown

    def safe(text: bytes) -> bytes:
        return printable(text.decode(errors="backslashreplace"), "\n\t").encode()

    return lambda records: list(map(safe, shown(records)))


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
            "headers": header_pairs(record.headers),
        }
        if isinstance(record, RawRecord):
            document |= {
                "transactional": record.transactional,
                "producer_id": record.producer_id,
                "producer_epoch": record.producer_epoch,
                "control": control,
            }
        return _dumped(document, indent) + b"\n"

    def lines_of_text(records: Sequence[Read]) -> list[bytes]:
        """As `one`, several times as fast."""
        text = encode_basestring
        lines = []
        for record in records:
            offset, timestamp, key, value, headers, topic, partition, kind = record[:8]
            try:
                lines.append(
                    f'{{"topic":"{topic}","partition":{partition},"offset":{offset},"timestamp":{timestamp},'
                    f'"timestamp_type":"{timestamp_type_name(kind)}","key":{"null" if key is None else text(key.decode())},'
                    f'"value":{"null" if value is None else text(value.decode())},'
                    f'"headers":{compact(header_pairs(headers)) if headers else "[]"}}}\n'.encode()
                )
            except UnicodeDecodeError:
                lines.append(one(record))
        return lines

    def shown(records: Sequence[Read]) -> list[bytes]:
        simple = decode is None and decode_key is None and indent is None
        simple = simple and bool(records) and not isinstance(records[0], RawRecord)
        return lines_of_text(records) if simple else [one(record) for record in records]

    return shown


def as_template(template: str, decode: Decode | None, decode_key: Decode | None) -> Shown:
    """Each record by a template. Raises WrongCall: an unknown token or escape."""

    def length(data: bytes | None) -> int:
        return -1 if data is None else len(data)

    # Each token: its place in the format of the whole line, and its column of values.
    tokens: dict[str, tuple[bytes, Callable[[Sequence[Read]], Iterable[Any]]]] = {
        "t": (b"%b", lambda records: [r.topic.encode() for r in records]),
        "p": (b"%d", lambda records: [r.partition for r in records]),
        "o": (b"%d", lambda records: [r.offset for r in records]),
        "k": (b"%b", lambda records: _texts([r.key for r in records], decode_key)),
        "K": (b"%d", lambda records: [length(r.key) for r in records]),
        "s": (b"%b", lambda records: _texts([r.value for r in records], decode)),
        "S": (b"%d", lambda records: [length(r.value) for r in records]),
        "T": (b"%d", lambda records: [r.timestamp for r in records]),
        "h": (b"%b", lambda records: [b",".join(_header(name, value) for name, value in r.headers) for r in records]),
    }
    columns: list[Callable[[Sequence[Read]], Iterable[Any]]] = []
    line = b""
    text, place = "", 0

    def literal() -> bytes:
        return unescaped(text, "--format").replace(b"%", b"%%")

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
        form, column = tokens[token]
        line += literal() + form
        columns.append(column)
        text = ""
    text += template[place:]
    line += literal()
    if not columns:
        return lambda records: [line % ()] * len(records)
    return lambda records: list(map(line.__mod__, zip(*(column(records) for column in columns), strict=True)))


def _texts(data: Sequence[bytes | None], decode: Decode | None) -> list[bytes]:
    """A column of bytes to print."""
    return [each or b"" for each in data] if decode is None else [_text(each, decode, None) for each in data]


def _header(name: str, value: bytes | None) -> bytes:
    return b"%b=%b" % (name.encode("utf-8", "surrogateescape"), b"NULL" if value is None else value)
