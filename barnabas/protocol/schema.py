"""Message declarations: one typed class per message for all versions, and its codecs (KIP-482, KIP-893).

    class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible_since=4):
        group_id: str = field(String)
        generation_id: int = field(Int32)
        member_id: str = field(String)
        group_instance_id: str | None = field(String, since=3, nullable_since=3, default=None)

A field that a version lacks is not sent and has its default after decoding. Unknown tagged fields and bytes after the
last field are ignored, as in Kafka. Codecs are generated on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Layout
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast, dataclass_transform, overload

from barnabas.errors import RemoteProtocolError
from barnabas.limits import DECODED_ELEMENTS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.decoding import DecoderSource
from barnabas.protocol.encoding import EncoderSource
from barnabas.protocol.primitives import read_uvarint
from barnabas.protocol.source import default_statements, flexible, layout_of
from barnabas.protocol.wire import Array, Field, Fixed, Text, Wire, present

T = TypeVar("T")

_MISSING: Any = object()
_PREFIX = Layout(">h")


class Coders(dict[int, Callable[..., Any]]):
    """Version → decoder or encoder of one message, generated on first use."""

    def __init__(self, source_of: Callable[[int], DecoderSource | EncoderSource]) -> None:
        super().__init__()
        self._source_of = source_of

    def __missing__(self, version: int) -> Callable[..., Any]:
        self[version] = made = cast("Callable[..., Any]", self._source_of(version).compile())
        return made


def make_init(cls: type[Any]) -> Callable[..., None]:
    fields: tuple[Field, ...] = cls.FIELDS
    namespace: dict[str, Any] = {"MISSING": _MISSING}

    def constant(prefix: str, value: Any) -> str:
        name = f"{prefix}_{len(namespace)}"
        namespace[name] = value
        return name

    parameters, body = [], []
    for f in fields:
        made = default_statements(f"self.{f.name}", f, constant)
        if f.has_mutable_default():
            parameters.append(f"{f.name}=MISSING")
            body.append(f" if {f.name} is not MISSING: self.{f.name} = {f.name}")
            body.append(" else:")
            body += ["  " + statement for statement in made]
        else:
            parameters.append(f"{f.name}={constant('d', f.default)}")
            body.append(f" self.{f.name} = {f.name}")
    star = "*, " if parameters else ""
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n" + ("\n".join(body) or " pass")
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), namespace)
    init: Callable[..., None] = namespace["__init__"]
    return init


@dataclass_transform(kw_only_default=True)
class _Declared(type):
    """Makes a declared class: its fields become slots, the arguments of its class statement the attributes of its base."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **arguments: Any) -> Any:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key, value in fields.items():
            value.name = key
            del namespace[key]
        namespace.setdefault("__slots__", tuple(fields))
        if fields:
            namespace["FIELDS"] = tuple(fields.values())
        made: Any = super().__new__(cls, name, bases, namespace | {key.upper(): arguments[key] for key in arguments})
        if "versions" in arguments:
            made._DECODERS = Coders(lambda version: DecoderSource(made, version))
            made._ENCODERS = Coders(lambda version: EncoderSource(made, version, by_reference=False))
            made._PARTS = Coders(lambda version: EncoderSource(made, version, by_reference=True))
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **arguments: Any) -> None:
        super().__init__(name, bases, namespace)


class Struct(metaclass=_Declared):
    """Base of declared classes: slots, keyword construction, equality and representation, a default for every field."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    HIDDEN: ClassVar[frozenset[str]] = frozenset()  # fields whose values the representation does not show

    def __init__(self, **values: Any) -> None:
        # The first construction of a class generates its real __init__, which replaces this one.
        cls = type(self)
        cls.__init__ = make_init(cls)  # type: ignore[method-assign]  # made on first use
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # mutable and equal by value: a hash would change with the value

    def __repr__(self) -> str:
        hidden = self.HIDDEN
        values = ", ".join(
            f"{f.name}={'[hidden]' if f.name in hidden else repr(getattr(self, f.name))}" for f in self.FIELDS
        )
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """Base of requests, responses and headers.

    Attributes:
        API_KEY: -1 for headers.
        VERSIONS: first and last declared version, inclusive.
        FLEXIBLE_SINCE: first flexible version or None.
    """

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int | None] = None


class RecordMessage(Struct):
    """Base of keys and values of internal topics, which have a two-byte prefix before their fields.

    Attributes:
        PREFIX: None if the prefix is the version; else the number of the record type, as in keys of coordinator topics.
        API_KEY: record type in `__cluster_metadata`, -1 elsewhere.
    """

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int | None] = None
    PREFIX: ClassVar[int | None] = None


@overload
def field(
    wire: Wire[T] | type[T],
    *,
    since: int = ...,
    until: int | None = ...,
    default: T = ...,
    tag: int | None = ...,
    tag_since: int | None = ...,
    compact: bool = ...,
) -> T: ...
@overload
def field(
    wire: Wire[T] | type[T],
    *,
    since: int = ...,
    until: int | None = ...,
    nullable_since: int,
    default: T | None = ...,
    tag: int | None = ...,
    tag_since: int | None = ...,
    compact: bool = ...,
) -> T | None: ...
def field(wire: Any, *, default: Any = _MISSING, **declared: Any) -> Any:
    """Declares one field.

    Args:
        wire: a wire type, or the class of a nested struct.
        since, until: versions that have the field, inclusive; until None means the last version.
        nullable_since: first version in which null is legal.
        default: Kafka's default; without it 0, False, "", b"", an empty list, an empty struct, or the nil uuid.
        tag: number of a tagged field, tagged from `tag_since` on (default: `since`).
        compact: False keeps the classic length in flexible versions.
    """
    if default is _MISSING:
        default = wire if isinstance(wire, type) else wire.default
    return Field(wire, default=default, **declared)


def decode(cls: type[T], buffer: Buffer, version: int, offset: int = 0) -> T:
    """Decodes one message at `offset`. Records fields are views of `buffer`.

    Raises:
        RemoteProtocolError: malformed, or more than `limits.DECODED_ELEMENTS_MAX` elements.
        LocalProtocolError: `cls` has no such version; the caller checks a peer's version before.
    """
    declared: Any = cls
    decoded: T = declared._DECODERS[version](buffer, offset, DECODED_ELEMENTS_MAX)[0]
    return decoded


def decode_beginning(cls: type[T], buffer: Buffer, version: int, offset: int) -> T:
    """Decodes a truncated message: elements whose first field is complete; tagged fields have their defaults."""
    found = cls()
    try:
        _Beginning(buffer, version, flexible(cls, version), offset).read_fields(found, [])
    except (RemoteProtocolError, ValueError):
        pass  # here it is cut off
    return found


class _Beginning:
    """Reads fields one by one, without generated code."""

    def __init__(self, buffer: Buffer, version: int, compact: bool, position: int) -> None:
        self._buffer, self._version, self._compact, self._position = buffer, version, compact, position

    def read_fields(self, target: Any, elements: list[Any]) -> None:
        for number, each in enumerate(present(type(target), self._version)):
            self._read(target, each.name, each.wire, each.nullable(self._version))
            if number == 0:
                elements.append(target)
        if self._compact:
            for _ in range(self._number()):
                self._number()
                self._bytes(self._number())

    def _read(self, target: Any, name: str, wire: Any, nullable: bool) -> None:
        if isinstance(wire, Array):
            count, found = self._length(4, nullable), list[Any]()
            setattr(target, name, found if count >= 0 else None)
            for _ in range(min(count, len(self._buffer))):
                if isinstance(wire.element, Wire):
                    found.append(self._value(wire.element, nullable=False))
                else:
                    self.read_fields(wire.element(), found)
        elif isinstance(wire, Wire):
            setattr(target, name, self._value(wire, nullable))
        elif not nullable or self._bytes(1) == b"\x01":
            setattr(target, name, wire())
            self.read_fields(getattr(target, name), [])

    def _value(self, wire: Wire[Any], nullable: bool) -> Any:
        if isinstance(wire, Fixed):
            return layout_of(wire.code).unpack(self._bytes(wire.size))[0]
        size = self._length(2 if isinstance(wire, Text) else 4, nullable)
        if size < 0:
            return None
        return self._bytes(size).decode() if isinstance(wire, Text) else self._bytes(size)

    def _length(self, width: int, nullable: bool) -> int:
        size = self._number() - 1 if self._compact else int.from_bytes(self._bytes(width), "big", signed=True)
        if size < 0 and not nullable:
            raise RemoteProtocolError("null where it is not allowed")
        return size

    def _number(self) -> int:
        found, self._position = read_uvarint(self._buffer, self._position)
        return found

    def _bytes(self, size: int) -> bytes:
        found = bytes(self._buffer[self._position : self._position + size])
        if len(found) < size:
            raise RemoteProtocolError("the message is cut off")
        self._position += size
        return found


def encode(msg: Any, version: int) -> bytes:
    """Raises LocalProtocolError for an unknown version or a value that the version cannot carry."""
    out = bytearray()
    msg._ENCODERS[version](out, msg)
    return bytes(out)


def encode_parts(msg: Any, version: int, head: bytearray | None = None) -> list[Buffer]:
    """As buffers for `writelines`, long records by reference. `head`: bytes before the message, in the first part."""
    parts: list[Buffer] = []
    parts.append(msg._PARTS[version](bytearray() if head is None else head, msg, parts))
    return parts


class Codec(Protocol[T]):
    """Both directions of one (message, version). Errors as in `encode` and `decode`."""

    def encode(self, msg: T) -> bytes: ...

    def encode_into(self, out: bytearray, msg: T) -> None:
        """Bytes that were appended before an error stay."""

    def decode(self, buffer: Buffer, pos: int = 0) -> tuple[T, int]:
        """The message at `pos` and the position after it. Raises LargeMessage if a request has more
        than ONE_TURN_ELEMENTS_MAX elements: `decode` takes it in the worker thread."""
        ...


class _Codec:
    """`decode` and `encode_into` are generated on first use."""

    __slots__ = ("_cls", "_version", "decode", "encode_into")

    def __init__(self, cls: Any, version: int) -> None:
        self._cls = cls
        self._version = version

    def __getattr__(self, name: str) -> Any:
        if name not in ("decode", "encode_into"):
            raise AttributeError(name)
        made = (self._cls._DECODERS if name == "decode" else self._cls._ENCODERS)[self._version]
        setattr(self, name, made)
        return made

    def encode(self, msg: Any) -> bytes:
        return encode(msg, self._version)


_CODECS: Final[dict[tuple[type, int], _Codec]] = {}  # all that were asked for


def codec(cls: type[T], version: int) -> Codec[T]:
    """Raises LocalProtocolError for an unknown version."""
    made = _CODECS.get((cls, version))
    if made is None:
        flexible(cls, version)
        made = _CODECS[cls, version] = _Codec(cls, version)
    return made


def encode_versioned(rec: Any, version: int) -> bytes:
    """Encodes an internal topic's record after its two-byte prefix. Errors as in `encode`."""
    prefix: int | None = rec.PREFIX
    out = bytearray(_PREFIX.pack(version if prefix is None else prefix))
    rec._ENCODERS[version](out, rec)
    return bytes(out)


def decode_versioned(cls: type[T], buffer: Buffer) -> T:
    """Decodes a record by its two-byte prefix. Raises RemoteProtocolError for another type or undeclared version."""
    if len(buffer) < 2:
        raise RemoteProtocolError(f"{cls.__name__}: {len(buffer)} bytes are too short for the two-byte prefix")
    (number,) = _PREFIX.unpack_from(buffer, 0)
    declared: Any = cls
    prefix: int | None = declared.PREFIX
    first, last = declared.VERSIONS
    if prefix is None:
        if not first <= number <= last:
            raise RemoteProtocolError(f"{cls.__name__}: version {number} is not one of {first}-{last}")
        return decode(cls, buffer, number, 2)
    if number != prefix:
        raise RemoteProtocolError(f"{cls.__name__}: record type {number} instead of {prefix}")
    return decode(cls, buffer, last, 2)
