"""Straight-line Python for one (message, version) and direction, written from its declaration and compiled on first use.

What makes it fast: fields of fixed width that lie next to each other, with the length or count behind them, are one
`struct` call; nested structs are inlined; the one-byte case of a compact length is inlined; objects are made by `__new__`
and filled slot by slot.

What makes it safe, although most reads check nothing: a slice never allocates more than the buffer has; reading a fixed-width
value behind the end raises; positions only grow, for negative lengths are refused; so an overlong length is caught by the
next read or by the one check at the end. Counts are checked before their loop: the smallest encoding of so many elements
must fit in the bytes left, and the message's total, tags included, must stay within `limits.DECODED_ELEMENTS_MAX`.

Names in generated code: b buffer, w its memoryview, z its length, p position, n a length or count, t elements and tags so far.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.limits import DECODED_ELEMENTS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.primitives import encode_uvarint, read_uvarint, read_uvarint_rest
from barnabas.protocol.wire import Array, Blob, Field, Fixed, RecordsView, Text, Wire, present, smallest, tagged

__all__ = ["BY_REFERENCE_BYTES_MIN", "Decoders", "Encoders", "PartsEncoders", "flexible", "make_init"]

BY_REFERENCE_BYTES_MIN = 4096  # records shorter than this are cheaper to copy than to carry as a buffer of their own
_COPY_BYTES_MAX = 4096  # a shorter message is copied to bytes first: slices and single bytes are read faster from bytes

_MISSING: Any = object()
_STRUCTS: dict[str, struct.Struct] = {}


def flexible(cls: type, version: int) -> bool:
    """Whether `version` of a message is a flexible one.

    Raises:
        LocalProtocolError: the message has no such version.
    """
    first, last = cls.VERSIONS  # type: ignore[attr-defined]  # every declared message has both
    since: int | None = cls.FLEXIBLE_SINCE  # type: ignore[attr-defined]
    if not first <= version <= last:
        raise LocalProtocolError(f"{cls.__name__} has versions {first}-{last}, not {version}")
    return since is not None and version >= since


class Decoders(dict[int, Callable[[Buffer, int], tuple[Any, int]]]):
    """Version → decoder of one message, written when first asked for."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
        made: Callable[[Buffer, int], tuple[Any, int]] = _DecoderSource(self._cls, version).compile()
        self[version] = made
        return made


class Encoders(dict[int, Callable[[Any, bytearray], None]]):
    """Version → encoder of one message into a bytearray."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, version: int) -> Callable[[Any, bytearray], None]:
        made: Callable[[Any, bytearray], None] = _EncoderSource(self._cls, version, by_reference=False).compile()
        self[version] = made
        return made


class PartsEncoders(dict[int, Callable[[Any, bytearray, list[Buffer]], bytearray]]):
    """Version → encoder that passes long records by reference: fills the list of parts and returns the last one."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, version: int) -> Callable[[Any, bytearray, list[Buffer]], bytearray]:
        made: Callable[[Any, bytearray, list[Buffer]], bytearray]
        made = _EncoderSource(self._cls, version, by_reference=True).compile()
        self[version] = made
        return made


def make_init(cls: type) -> Callable[..., None]:
    """The keyword-only `__init__` of a declared class."""
    fields: tuple[Field, ...] = cls.FIELDS  # type: ignore[attr-defined]
    namespace: dict[str, Any] = {"MISSING": _MISSING}
    parameters, body = [], []
    for f in fields:
        make = f.make_default()
        if make is None:
            namespace[f"d_{f.name}"] = f.default
            parameters.append(f"{f.name}=d_{f.name}")
            body.append(f" self.{f.name} = {f.name}")
        else:
            namespace[f"d_{f.name}"] = make
            parameters.append(f"{f.name}=MISSING")
            body.append(f" self.{f.name} = d_{f.name}() if {f.name} is MISSING else {f.name}")
    star = "*, " if parameters else ""
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n" + ("\n".join(body) or " pass")
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), namespace)
    made: Callable[..., None] = namespace["__init__"]
    return made


def _struct(codes: str) -> struct.Struct:
    made = _STRUCTS.get(codes)
    if made is None:
        made = _STRUCTS[codes] = struct.Struct(">" + codes)
    return made


class _Source:
    """Lines of one function, and the constants it refers to."""

    def __init__(self, cls: type, version: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible(cls, version)
        self.lines: list[str] = []
        self.indent = 1
        self.namespace: dict[str, Any] = {}
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def fresh(self, prefix: str) -> str:
        """A local name not used before."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A global name for `value`."""
        for name, held in self.namespace.items():
            if held is value and name.startswith(prefix):
                return name
        name = f"{prefix}_{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def literal(self, value: Any) -> str:
        """An expression for a default that may be shared."""
        if value is None or isinstance(value, (bool, int, str, bytes)):
            return repr(value)
        return self.constant("k", value)

    def build(self, head: str) -> Any:
        source = head + "\n" + "\n".join(self.lines)
        exec(compile(source, f"<{self.cls.__name__} v{self.version}>", "exec"), self.namespace)
        return self.namespace["coder"]


class _DecoderSource(_Source):
    """Writes `coder(b, p) -> (message, position after it)`."""

    def __init__(self, cls: type, version: int) -> None:
        super().__init__(cls, version)
        self._run: list[tuple[str, str]] = []  # fixed-width reads not yet written: (struct code, target)
        self.views = False

    def compile(self) -> Any:
        where = f"{self.cls.__name__} version {self.version}"

        def malformed(error: Exception) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: {error}")

        def overlong(end: int, size: int) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: a length reaches to byte {end} of {size}")

        def bad_count(name: str, count: int, left: int) -> RemoteProtocolError:
            if count < 0:
                return RemoteProtocolError(f"{where}: {name} must not be null")
            return RemoteProtocolError(
                f"{where}: {count} elements of {name} with {left} bytes left (at most {DECODED_ELEMENTS_MAX} a message)"
            )

        def null(name: str) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: {name} must not be null")

        def bad_tag(name: str, size: int, taken: int) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: tagged field {name} says {size} bytes and takes {taken}")

        self.namespace |= {
            "rest": read_uvarint_rest,
            "uvarint": read_uvarint,
            "skip_tags": _skip_tags,
            "unpack_from": struct.unpack_from,
            "new": object.__new__,
            "malformed": malformed,
            "overlong": overlong,
            "bad_count": bad_count,
            "null": null,
            "bad_tag": bad_tag,
            "Malformed": (struct.error, IndexError, UnicodeDecodeError, OverflowError),
        }
        self.indent = 2
        self._object("m", self.cls)
        self._flush()
        self.line("if p > z: raise overlong(p, z)")
        self.line("return m, p")
        head = ["def coder(b, p=0):", " z = len(b)"]
        if self.views:
            head.append(" w = b if b.__class__ is memoryview else memoryview(b)")
        head.append(f" if z <= {_COPY_BYTES_MAX} and b.__class__ is not bytes: b = bytes(b)")
        head.append(" t = 0")
        head.append(" try:")
        self.lines.append(" except Malformed as error: raise malformed(error) from None")
        return self.build("\n".join(head))

    def _object(self, target: str, cls: type) -> None:
        """Makes the object and reads its fields."""
        self.line(f"{target} = new({self.constant('C', cls)})")
        for f in present(cls, self.version):
            self._value(f"{target}.{f.name}", f.name, f.wire, f.nullable(self.version), self.flexible and f.compact)
        by_tag = tagged(cls, self.version)
        here = {f.name for f in present(cls, self.version)}
        fields: tuple[Field, ...] = cls.FIELDS  # type: ignore[attr-defined]
        for f in fields:
            if f.name not in here:
                make = f.make_default()
                value = self.literal(f.default) if make is None else f"{self.constant('D', make)}()"
                if make is list:
                    value = "[]"
                self.line(f"{target}.{f.name} = {value}")
        if self.flexible:
            self._tags(target, by_tag)

    def _tags(self, target: str, by_tag: list[Field]) -> None:
        self._flush("B", "n")
        if not by_tag:
            self.line("if n: p, t = skip_tags(b, p, n, t)")
            return
        self.line("if n:")
        self.indent += 1
        self.line("if n > 127: n, p = rest(b, p, n)")
        self.line("t += n")
        self.line(f"if t > {DECODED_ELEMENTS_MAX}: raise bad_count('tagged fields', n, z - p)")
        self.line("for _ in range(n):")
        self.indent += 1
        tag, end, size = self.fresh("g"), self.fresh("e"), self.fresh("s")
        self.line(f"{tag}, p = uvarint(b, p)")
        self.line(f"{size}, p = uvarint(b, p)")
        self.line(f"{end} = p + {size}")
        self.line(f"if {end} > z: raise overlong({end}, z)")
        word = "if"
        for f in by_tag:
            self.line(f"{word} {tag} == {f.tag}:")
            word = "elif"
            self.indent += 1
            self._value(f"{target}.{f.name}", f.name, f.wire, f.nullable(self.version), f.compact)
            self._flush()
            self.line(f"if p != {end}: raise bad_tag({f.name!r}, {size}, p - {end} + {size})")
            self.indent -= 1
        self.line(f"else: p = {end}")
        self.indent -= 2

    def _value(self, target: str, name: str, wire: Any, nullable: bool, compact: bool) -> None:
        """Reads one value into `target`, an expression that can be assigned to."""
        if isinstance(wire, Fixed):
            self._run.append((wire.code, target))
        elif isinstance(wire, Text):
            self._sized(target, name, "str(b[p:e], 'utf-8')", "h", nullable, compact)
        elif isinstance(wire, Blob):
            self._sized(target, name, "bytes(b[p:e])", "i", nullable, compact)
        elif isinstance(wire, RecordsView):
            self.views = True
            self._sized(target, name, "w[p:e]", "i", nullable, compact)
        elif isinstance(wire, Array):
            self._array(target, name, wire, nullable, compact)
        elif nullable:
            self._flush("b", "n")
            self.line(f"if n < 0: {target} = None")
            self.line("else:")
            self.indent += 1
            self._nested(target, wire)
            self._flush()
            self.indent -= 1
        else:
            self._nested(target, wire)

    def _nested(self, target: str, cls: type) -> None:
        name = self.fresh("o")
        self._object(name, cls)
        self.line(f"{target} = {name}")

    def _length(self, classic: str, compact: bool) -> None:
        """Reads a length or count into n: as sent where compact (one more than the number, 0 for null)."""
        if compact:
            self._flush("B", "n")
            self.line("if n > 127: n, p = rest(b, p, n)")
        else:
            self._flush(classic, "n")

    def _sized(self, target: str, name: str, value: str, classic: str, nullable: bool, compact: bool) -> None:
        self._length(classic, compact)
        is_null = "not n" if compact else "n < 0"
        end = "p + n - 1" if compact else "p + n"
        if nullable:
            self.line(f"if {is_null}: {target} = None")
            self.line(f"else: e = {end}; {target} = {value}; p = e")
        else:
            self.line(f"if {is_null}: raise null({name!r})")
            self.line(f"e = {end}; {target} = {value}; p = e")

    def _array(self, target: str, name: str, wire: Array[Any], nullable: bool, compact: bool) -> None:
        self._length("i", compact)
        if nullable:
            self.line(f"if {'not n' if compact else 'n < 0'}: {target} = None")
            self.line("else:")
            self.indent += 1
        if compact:
            self.line("n -= 1")
        element = wire.element
        least = smallest(element, self.version, self.flexible)
        self.line("t += n")
        self.line(f"if n < 0 or n * {least} > z - p or t > {DECODED_ELEMENTS_MAX}: raise bad_count({name!r}, n, z - p)")
        if isinstance(element, Fixed) and len(element.code) == 1:
            self.line(f"{target} = list(unpack_from('>%d{element.code}' % n, b, p)); p += n * {element.size}")
        else:
            items = self.fresh("a")
            self.line(f"{items} = {target} = []")
            self.line("for _ in range(n):")
            self.indent += 1
            if isinstance(element, Wire):
                item = self.fresh("v")
                self._value(item, name, element, False, compact)
                self._flush()
            else:
                item = self.fresh("o")
                self._object(item, element)
                self._flush()
            self.line(f"{items}.append({item})")
            self.indent -= 1
        if nullable:
            self.indent -= 1

    def _flush(self, code: str = "", target: str = "") -> None:
        """Writes the pending fixed-width reads, with one more behind them, as one call."""
        run = self._run
        if code:
            run.append((code, target))
        if not run:
            return
        if run == [("B", "n")]:
            self.line("n = b[p]; p += 1")
        else:
            layout = _struct("".join(c for c, _ in run))
            unpack = "u_" + layout.format[1:].replace("?", "z")
            self.namespace[unpack] = layout.unpack_from
            targets = ", ".join(t for _, t in run) + ("," if len(run) == 1 else "")
            self.line(f"{targets} = {unpack}(b, p); p += {layout.size}")
        self._run = []


def _skip_tags(b: Buffer, p: int, n: int, t: int) -> tuple[int, int]:
    """Steps over `n` tagged fields nobody knows (n still as its first byte); returns p and t after them."""
    if n > 127:
        n, p = read_uvarint_rest(b, p, n)
    z = len(b)
    t += n
    if t > DECODED_ELEMENTS_MAX:
        raise RemoteProtocolError(f"{n} tagged fields (at most {DECODED_ELEMENTS_MAX} elements and tags a message)")
    for _ in range(n):
        _, p = read_uvarint(b, p)
        size, p = read_uvarint(b, p)
        p += size
        if p > z:
            raise RemoteProtocolError(f"a tagged field reaches to byte {p} of {z}")
    return p, t


class _EncoderSource(_Source):
    """Writes `coder(m, out)`, or `coder(m, out, parts) -> last part` where long records are passed by reference."""

    def __init__(self, cls: type, version: int, *, by_reference: bool) -> None:
        super().__init__(cls, version)
        self._run: list[tuple[str, str]] = []  # fixed-width writes not yet written: (struct code, expression)
        self._out = "out"
        self._by_reference = by_reference

    def compile(self) -> Any:
        where = f"{self.cls.__name__} version {self.version}"

        def unfit(error: Exception) -> LocalProtocolError:
            return LocalProtocolError(f"{where} cannot carry this value: {error}")

        self.namespace |= {
            "uvarint": encode_uvarint,
            "pack": struct.pack,
            "unfit": unfit,
            "Unfit": (struct.error, AttributeError, TypeError, ValueError, OverflowError),
        }
        self.indent = 2
        self._fields("m", self.cls)
        self._flush()
        if self._by_reference:
            self.line("return out")
        elif not self.lines:
            self.line("pass")
        self.lines.append(" except Unfit as error: raise unfit(error) from None")
        return self.build(f"def coder(m, out{', parts' if self._by_reference else ''}):\n try:")

    def _fields(self, source: str, cls: type) -> None:
        for f in present(cls, self.version):
            self._value(f"{source}.{f.name}", f.wire, f.nullable(self.version), self.flexible and f.compact)
        if self.flexible:
            self._tags(source, tagged(cls, self.version))

    def _tags(self, source: str, by_tag: list[Field]) -> None:
        if not by_tag:
            self._run.append(("x", ""))
            return
        count, block = self.fresh("k"), self.fresh("g")
        self._flush()
        self.line(f"{count} = 0; {block} = b''")
        outer = self._out
        for f in by_tag:
            self.line(f"if {self._differs(f'{source}.{f.name}', f)}:")
            self.indent += 1
            self._out = self.fresh("x")
            self.line(f"{self._out} = bytearray()")
            self._value(f"{source}.{f.name}", f.wire, f.nullable(self.version), f.compact)
            self._flush()
            prefix = encode_uvarint(f.tag or 0)
            self.line(f"{count} += 1; {block} += {prefix!r} + uvarint(len({self._out})) + {self._out}")
            self.indent -= 1
        self._out = outer
        self.line(f"{outer}.append({count}); {outer} += {block}")

    def _differs(self, value: str, f: Field) -> str:
        """Whether a tagged field holds anything but its default, as an expression."""
        if f.default is None:
            return f"{value} is not None"
        if isinstance(f.wire, Array):
            return value if not f.nullable(self.version) else f"{value} is None or {value}"
        make = f.make_default()
        return f"{value} != {self.literal(f.default if make is None else make())}"

    def _value(self, value: str, wire: Any, nullable: bool, compact: bool) -> None:
        if isinstance(wire, Fixed):
            self._run.append((wire.code, f"sized_uuid({value})" if wire.size == 16 else value))
            if wire.size == 16:
                self.namespace["sized_uuid"] = _sized_uuid
        elif isinstance(wire, Text):
            self._sized(value, ".encode()", "h", nullable, compact)
        elif isinstance(wire, (Blob, RecordsView)):
            self._sized(value, "", "i", nullable, compact, by_reference=isinstance(wire, RecordsView))
        elif isinstance(wire, Array):
            self._array(value, wire, nullable, compact)
        elif nullable:
            held = self.fresh("o")
            self._flush()
            self.line(f"{held} = {value}")
            self.line(f"if {held} is None: {self._out} += b'\\xff'")
            self.line("else:")
            self.indent += 1
            self._run.append(("b", "1"))
            self._fields(held, wire)
            self._flush()
            self.indent -= 1
        else:
            held = self.fresh("o")
            self.line(f"{held} = {value}")
            self._fields(held, wire)

    def _sized(
        self, value: str, convert: str, classic: str, nullable: bool, compact: bool, *, by_reference: bool = False
    ) -> None:
        data, length = self.fresh("s"), self.fresh("l")
        plus = " + 1" if compact else ""
        if nullable:
            null = "0" if compact else "-1"
            self.line(f"{data} = {value}")
            self.line(f"if {data} is None: {data} = b''; {length} = {null}")
            if convert:
                self.line(f"else: {data} = {data}{convert}; {length} = len({data}){plus}")
            else:
                self.line(f"else: {length} = len({data}){plus}")
        else:
            self.line(f"{data} = {value}{convert}; {length} = len({data}){plus}")
        self._length(length, classic, compact)
        if by_reference and self._by_reference:
            self.line(f"if {length} < {BY_REFERENCE_BYTES_MIN}: {self._out} += {data}")
            self.line(f"else: parts.append({self._out}); parts.append({data}); {self._out} = bytearray()")
        else:
            self.line(f"{self._out} += {data}")

    def _array(self, value: str, wire: Array[Any], nullable: bool, compact: bool) -> None:
        items, length = self.fresh("a"), self.fresh("l")
        plus = " + 1" if compact else ""
        self.line(f"{items} = {value}")
        if nullable:
            null = "0" if compact else "-1"
            self.line(f"if {items} is None: {items} = (); {length} = {null}")
            self.line(f"else: {length} = len({items}){plus}")
        else:
            self.line(f"{length} = len({items}){plus}")
        self._length(length, "i", compact)
        element = wire.element
        if isinstance(element, Fixed) and len(element.code) == 1:
            self.line(f"if {items}: {self._out} += pack('>%d{element.code}' % len({items}), *{items})")
            return
        item = self.fresh("v")
        self.line(f"for {item} in {items}:")
        self.indent += 1
        if isinstance(element, Wire):
            self._value(item, element, False, compact)
        else:
            self._fields(item, element)
        self._flush()
        self.indent -= 1

    def _length(self, length: str, classic: str, compact: bool) -> None:
        """Writes a length or count with the pending fixed-width values before it."""
        if not compact:
            self._run.append((classic, length))
            self._flush()
            return
        run = self._run
        self._run = []
        if run:
            short, long = self._packed([*run, ("B", length)]), self._packed(run)
            self.line(f"{self._out} += {short} if {length} < 128 else {long} + uvarint({length})")
        else:
            self.line(f"if {length} < 128: {self._out}.append({length})")
            self.line(f"else: {self._out} += uvarint({length})")

    def _flush(self) -> None:
        if self._run:
            self.line(f"{self._out} += {self._packed(self._run)}")
        self._run = []

    def _packed(self, run: list[tuple[str, str]]) -> str:
        """An expression for the bytes of fixed-width values."""
        layout = _struct("".join(c for c, _ in run))
        values = [e for _, e in run if e]
        if not values:
            return repr(bytes(layout.size))
        pack = "p_" + layout.format[1:].replace("?", "z")
        self.namespace[pack] = layout.pack
        return f"{pack}({', '.join(values)})"


def _sized_uuid(value: bytes) -> bytes:
    if len(value) != 16:
        raise ValueError(f"{value!r} is no uuid of 16 bytes")
    return value
