"""Wire types and fields of message declarations; lengths are compact in flexible versions (KIP-482)."""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

from barnabas.errors import LocalProtocolError
from barnabas.ports import Buffer

T = TypeVar("T")
ZERO_UUID = bytes(16)


class Wire(Generic[T]):
    """Encoding of a value of type T. `default` applies unless the declaration has another one."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: T) -> None:
        self.name = name
        self.default = default

    def __repr__(self) -> str:
        return self.name


class Fixed(Wire[T]):
    """A fixed-width value: big-endian `struct` code and size in bytes."""

    __slots__ = ("code", "size")

    def __init__(self, name: str, code: str, default: T) -> None:
        super().__init__(name, default)
        self.code = code
        self.size = struct.calcsize(">" + code)


class Text(Wire[str]):
    """UTF-8 after its length in bytes: int16, or compact."""

    __slots__ = ()


class Blob(Wire[bytes]):
    """Bytes after their length: int32, or compact. Decoded to a copy."""

    __slots__ = ()


class RecordsView(Wire[Buffer | None]):
    """Record batches: encoded as Blob, decoded to a view of the received buffer, without copies."""

    __slots__ = ()


class Array(Wire[list[T]]):
    """Elements after their count: int32, or compact. `element` is a wire type or a declared struct."""

    __slots__ = ("element",)

    def __init__(self, element: Wire[T] | type[T]) -> None:
        super().__init__("Array", [])
        self.element = element

    def __repr__(self) -> str:
        return f"Array({getattr(self.element, '__name__', self.element)})"


Bool: Fixed[bool] = Fixed("Bool", "?", False)
Int8: Fixed[int] = Fixed("Int8", "b", 0)
Int16: Fixed[int] = Fixed("Int16", "h", 0)
Int32: Fixed[int] = Fixed("Int32", "i", 0)
Int64: Fixed[int] = Fixed("Int64", "q", 0)
UInt16: Fixed[int] = Fixed("UInt16", "H", 0)
UInt32: Fixed[int] = Fixed("UInt32", "I", 0)
Float64: Fixed[float] = Fixed("Float64", "d", 0.0)
Uuid: Fixed[bytes] = Fixed("Uuid", "16s", ZERO_UUID)
String = Text("String", "")
Bytes = Blob("Bytes", b"")
Records = RecordsView("Records", None)


class Field:
    """One field of a struct over all its versions; bounds are inclusive, None means without bound.

    Attributes:
        name: snake_case of the name in Kafka's schema.
        wire: a Wire, or the class of a nested struct.
        since, until: versions that carry the field.
        nullable_since: first version in which it may be null, None for never.
        default: value outside `since..until`; a tagged field equal to it is not sent.
        tag, tag_since: tag number, and the first version in which the field is tagged rather than in line.
        compact: False if flexible versions keep the classic length (only the client id of request headers).
    """

    __slots__ = ("compact", "default", "name", "nullable_since", "since", "tag", "tag_since", "until", "wire")

    def __init__(
        self,
        wire: Any,
        *,
        default: Any,
        since: int = 0,
        until: int | None = None,
        nullable_since: int | None = None,
        tag: int | None = None,
        tag_since: int | None = None,
        compact: bool = True,
    ) -> None:
        self.name = ""
        self.wire = wire
        self.since = since
        self.until = until
        self.nullable_since = nullable_since
        self.default = default
        self.tag = tag
        self.tag_since = since if tag_since is None else tag_since
        self.compact = compact

    def in_version(self, version: int) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)

    def is_tagged(self, version: int) -> bool:
        return self.tag is not None and version >= self.tag_since

    def nullable(self, version: int) -> bool:
        return self.nullable_since is not None and version >= self.nullable_since

    def has_mutable_default(self) -> bool:
        return self.default is not None and isinstance(self.wire, (Array, type))


def present(cls: type[Any], version: int) -> list[Field]:
    """The fields in line, in wire order."""
    fields: tuple[Field, ...] = cls.FIELDS
    return [f for f in fields if f.in_version(version) and not f.is_tagged(version)]


def tagged(cls: type[Any], version: int) -> list[Field]:
    fields: tuple[Field, ...] = cls.FIELDS
    return sorted((f for f in fields if f.in_version(version) and f.is_tagged(version)), key=lambda f: f.tag or 0)


def smallest(wire: Any, version: int, flexible: bool) -> int:
    """Smallest size in bytes of a value of `wire`. It limits a count before memory is allocated."""
    if isinstance(wire, Fixed):
        return wire.size
    if isinstance(wire, Text):
        return 1 if flexible else 2
    if isinstance(wire, (Blob, RecordsView, Array)):
        return 1 if flexible else 4
    if isinstance(wire, type):
        inline = present(wire, version)
        size = sum(
            1 if isinstance(f.wire, type) and f.nullable(version) else smallest(f.wire, version, flexible and f.compact)
            for f in inline
        )
        return size + 1 if flexible else max(size, 1)
    raise LocalProtocolError(f"{wire!r} is no wire type")
