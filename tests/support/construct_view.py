"""Declarations as plain `construct` structs: the readable reference for tests of generated codecs."""

from __future__ import annotations

from typing import Any

import construct as c

from barnabas.protocol.source import flexible as is_flexible
from barnabas.protocol.wire import Array, Blob, Field, Fixed, RecordsView, Text, present, tagged

_FIXED: dict[str, Any] = {
    "?": c.Flag,
    "b": c.Int8sb,
    "h": c.Int16sb,
    "i": c.Int32sb,
    "q": c.Int64sb,
    "H": c.Int16ub,
    "I": c.Int32ub,
    "d": c.Float64b,
    "16s": c.Bytes(16),
}


def construct_of(cls: type, version: int) -> Any:
    """The `construct` struct of one message and version.

    Raises:
        LocalProtocolError: the message has no such version.
    """
    return _struct(cls, version, is_flexible(cls, version))


def plain(msg: Any, version: int) -> dict[str, Any]:
    """A message as the container to which its construct struct parses: only fields of the version, views as bytes."""
    cls = type(msg)
    fields = present(cls, version) + tagged(cls, version)
    return {f.name: _plain(getattr(msg, f.name), version) for f in fields}


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, list):
        return [_plain(v, version) for v in value]
    if hasattr(value, "FIELDS"):
        return plain(value, version)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _struct(cls: type, version: int, flexible: bool) -> Any:
    inline = [
        f.name / _value(f.wire, version, flexible, f.nullable(version), flexible and f.compact)
        for f in present(cls, version)
    ]
    if not flexible:
        return c.Struct(*inline)
    return _Tagged(c.Struct(*inline, "tags" / _TAGS), tagged(cls, version), version)


def _value(wire: Any, version: int, flexible: bool, nullable: bool, compact: bool, null: int = -1) -> Any:
    if isinstance(wire, Fixed):
        return _FIXED[wire.code]
    if isinstance(wire, Text):
        return _Sized(c.VarInt if compact else c.Int16sb, compact, nullable, "utf-8")
    if isinstance(wire, (Blob, RecordsView)):
        return _Sized(c.VarInt if compact else c.Int32sb, compact, nullable, None)
    if isinstance(wire, Array):
        element = _value(wire.element, version, flexible, False, compact)
        return _Elements(c.VarInt if compact else c.Int32sb, compact, nullable, element)
    nested = _struct(wire, version, flexible)
    return _Nullable(nested, null) if nullable else nested


class _Counted(c.Construct):  # type: ignore[misc]  # construct ships no types
    """A value after its length or count, plus one if compact; a lower value means null."""

    def __init__(self, number: Any, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.number = number
        self.offset = 1 if compact else 0
        self.nullable = nullable

    def _count(self, stream: Any, context: Any, path: str) -> int | None:
        count: int = self.number._parsereport(stream, context, path) - self.offset
        if count >= 0:
            return count
        if not self.nullable:
            raise c.ValidationError("null where it is not allowed", path=path)
        return None

    def _build_count(self, count: int | None, stream: Any, context: Any, path: str) -> None:
        if count is None and not self.nullable:
            raise c.ValidationError("null where it is not allowed", path=path)
        self.number._build((-1 if count is None else count) + self.offset, stream, context, path)


class _Sized(_Counted):
    """A string or bytes."""

    def __init__(self, number: Any, compact: bool, nullable: bool, encoding: str | None) -> None:
        super().__init__(number, compact, nullable)
        self.encoding = encoding

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        size = self._count(stream, context, path)
        if size is None:
            return None
        data = c.stream_read(stream, size, path)
        return data.decode(self.encoding) if self.encoding else data

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        data = obj.encode(self.encoding) if self.encoding and obj is not None else obj
        self._build_count(None if data is None else len(data), stream, context, path)
        if data:
            c.stream_write(stream, data, len(data), path)
        return obj


class _Elements(_Counted):
    """An array."""

    def __init__(self, number: Any, compact: bool, nullable: bool, element: Any) -> None:
        super().__init__(number, compact, nullable)
        self.element = element

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        count = self._count(stream, context, path)
        return None if count is None else [self.element._parsereport(stream, context, path) for _ in range(count)]

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        self._build_count(None if obj is None else len(obj), stream, context, path)
        for value in obj or ():
            self.element._build(value, stream, context, path)
        return obj


class _Nullable(c.Construct):  # type: ignore[misc]  # construct ships no types
    """A struct after one byte: −1 for null (KIP-893), 0 for null in a tagged field, else 1."""

    def __init__(self, struct: Any, null: int) -> None:
        super().__init__()
        self.struct = struct
        self.null = null

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        if c.Int8sb._parsereport(stream, context, path) <= self.null:
            return None
        return self.struct._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        c.Int8sb._build(self.null if obj is None else 1, stream, context, path)
        if obj is not None:
            self.struct._build(obj, stream, context, path)
        return obj


_TAGS = c.PrefixedArray(c.VarInt, c.Struct("tag" / c.VarInt, "data" / c.Prefixed(c.VarInt, c.GreedyBytes)))


class _Tagged(c.Adapter):  # type: ignore[misc]  # construct ships no types
    """A flexible struct: adds its tagged fields to the others, ignores unknown tags."""

    def __init__(self, struct: Any, fields: list[Field], version: int) -> None:
        super().__init__(struct)
        self.fields = {f.tag: f for f in fields}
        self.layouts = {f.tag: _value(f.wire, version, True, f.nullable(version), f.compact, 0) for f in fields}
        self.defaults = {f.tag: _default(f, version) for f in fields}

    def _decode(self, obj: Any, context: Any, path: str) -> Any:
        sent = {t.tag: t.data for t in obj.pop("tags")}
        for tag, f in self.fields.items():
            obj[f.name] = self.layouts[tag].parse(sent[tag]) if tag in sent else self.defaults[tag]
        return obj

    def _encode(self, obj: Any, context: Any, path: str) -> Any:
        tags = [
            {"tag": tag, "data": self.layouts[tag].build(obj[f.name])}
            for tag, f in self.fields.items()
            if obj[f.name] != self.defaults[tag]
        ]
        return {**obj, "tags": tags}


def _default(f: Field, version: int) -> Any:
    return _plain(f.default() if isinstance(f.default, type) else f.default, version)
