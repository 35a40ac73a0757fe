"""Generates decoders: straight-line Python from the bytes of one (message, version) to its objects.

A decoder takes the most elements that a request may have: by default `limits.ONE_TURN_ELEMENTS_MAX`. It raises LargeMessage for more,
and TooManyElements above `limits.DECODED_ELEMENTS_MAX`.

They are safe although most reads have no check. A slice never allocates more than the buffer has. A read of a
fixed-width value after the end raises. Positions only grow, because negative lengths are refused. So the next read, or the one
check at the end, detects a length that is too large. Counts are checked before their loop: the smallest encoding of all
elements must fit in the bytes left, and the message's total, including tags, must stay within
`limits.DECODED_ELEMENTS_MAX`. A topic without partitions asks for nothing, but handlers work on it: its empty list counts as
`limits.EMPTY_LIST_ELEMENTS`.

Names in generated code: b buffer, w its memoryview, z its length, p position, e end of a value, n a length or count,
t elements and tags so far, most how many are allowed.
"""

from __future__ import annotations

import struct
from typing import Any

from barnabas.errors import LargeMessage, RemoteProtocolError, TooManyElements
from barnabas.limits import ANSWER_ELEMENTS_MAX, DECODED_ELEMENTS_MAX, EMPTY_LIST_ELEMENTS, ONE_TURN_ELEMENTS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.primitives import read_uvarint, read_uvarint_rest
from barnabas.protocol.source import Source, default_statements, layout_of
from barnabas.protocol.wire import Array, Blob, Field, Fixed, RecordsView, Text, Wire, present, smallest, tagged

STRING_BYTES_MAX = 32_767  # also of a compact string, as in Kafka: records of internal topics have an int16 for it
_COPY_BYTES_MAX = 4096  # a shorter message is copied to bytes first: slices and single bytes are read faster from bytes


class DecoderSource(Source):
    """Writes `coder(b, p, most) -> (message, position after it)`."""

    def __init__(self, cls: type[Any], version: int) -> None:
        super().__init__(cls, version)
        self._run: list[tuple[str, str]] = []  # pending fixed-width reads: (struct code, target)
        self.views = False
        self.depth = 0  # of arrays around the present element
        self.limit = ANSWER_ELEMENTS_MAX if cls.__name__.endswith("Response") else DECODED_ELEMENTS_MAX

    def compile(self) -> Any:
        where = f"{self.cls.__name__} version {self.version}"
        limit, requests = self.limit, may_be_large(self.cls)

        def malformed(error: Exception) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: {error}")

        def overlong(end: int, size: int) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: a length reaches to byte {end} of {size}")

        def bad_count(name: str, count: int, left: int, most: int = limit) -> RemoteProtocolError:
            if count < 0:
                return RemoteProtocolError(f"{where}: {name} must not be null")
            if most < count <= limit:
                return LargeMessage(f"{where}: {count} elements of {name}, too many for one turn")
            return RemoteProtocolError(
                f"{where}: {count} elements of {name} with {left} bytes left (at most {limit} a message)"
            )

        def too_many(name: str, count: int, most: int) -> RemoteProtocolError:
            error = LargeMessage if most < limit else TooManyElements
            return error(f"{where}: {count} elements up to {name} (at most {limit} a message)")

        def null(name: str) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: {name} must not be null")

        def long_string(name: str, size: int) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: {name} of {size} bytes, at most {STRING_BYTES_MAX} are allowed")

        def bad_tag(name: str, size: int, taken: int) -> RemoteProtocolError:
            return RemoteProtocolError(f"{where}: tagged field {name} says {size} bytes and takes {taken}")

        self.namespace |= {
            "rest": read_uvarint_rest,
            "skip_tags": _skip_tags,
            "unpack_from": struct.unpack_from,
            "new": object.__new__,
            "malformed": malformed,
            "overlong": overlong,
            "bad_count": bad_count,
            "too_many": too_many,
            "null": null,
            "long_string": long_string,
            "bad_tag": bad_tag,
            "Malformed": (struct.error, IndexError, UnicodeDecodeError, OverflowError),
        }
        self.indent = 2
        self._object("m", self.cls)
        self._flush()
        self.line("if p > z: raise overlong(p, z)")
        self.line("return m, p")
        head = [f"def coder(b, p=0, most={ONE_TURN_ELEMENTS_MAX if requests else limit}):", " z = len(b)"]
        if not requests:
            head.append(f" most = {limit}")
        if self.views:
            head.append(" w = b if b.__class__ is memoryview else memoryview(b)")
        head.append(f" if z <= {_COPY_BYTES_MAX} and b.__class__ is not bytes: b = bytes(b)")
        head.append(" t = 0")
        head.append(" try:")
        self.lines.append(" except Malformed as error: raise malformed(error) from None")
        return self.build("\n".join(head))

    def _object(self, target: str, cls: type[Any]) -> None:
        self.line(f"{target} = new({self.constant('C', cls)})")
        for f in present(cls, self.version):
            self._value(f"{target}.{f.name}", f.name, f.wire, f.nullable(self.version), self.flexible and f.compact)
        by_tag = tagged(cls, self.version)
        here = {f.name for f in present(cls, self.version)}
        fields: tuple[Field, ...] = cls.FIELDS
        for f in fields:
            if f.name not in here:
                for statement in default_statements(f"{target}.{f.name}", f, self.constant):
                    self.line(statement)
        if self.flexible:
            self._tags(target, by_tag)

    def _tags(self, target: str, by_tag: list[Field]) -> None:
        self._flush("B", "n")
        if not by_tag:
            self.line("if n: p, t = skip_tags(b, p, n, t, most)")
            return
        self.line("if n:")
        self.indent += 1
        self.line("if n > 127: n, p = rest(b, p, n)")
        self.line("t += n")
        self.line(f"if n > {DECODED_ELEMENTS_MAX} or t > most: raise bad_count('tagged fields', t, z - p, most)")
        self.line("for _ in range(n):")
        self.indent += 1
        tag, end, size = self.fresh("g"), self.fresh("e"), self.fresh("s")
        for number in (tag, size):
            self.line(f"{number} = b[p]; p += 1")
            self.line(f"if {number} > 127: {number}, p = rest(b, p, {number})")
        self.line(f"{end} = p + {size}")
        self.line(f"if {end} > z: raise overlong({end}, z)")
        word = "if"
        for f in by_tag:
            self.line(f"{word} {tag} == {f.tag}:")
            word = "elif"
            self.indent += 1
            self._value(f"{target}.{f.name}", f.name, f.wire, f.nullable(self.version), f.compact, null=0)
            self._flush()
            self.line(f"if p != {end}: raise bad_tag({f.name!r}, {size}, p - {end} + {size})")
            self.indent -= 1
        self.line(f"else: p = {end}")
        self.indent -= 2

    def _value(self, target: str, name: str, wire: Any, nullable: bool, compact: bool, null: int = -1) -> None:
        """Reads one value into `target`, an assignable expression. `null`: the marker of a null struct."""
        if isinstance(wire, Fixed):
            self._run.append((wire.code, target))
        elif isinstance(wire, Text):
            self._length("h", compact)
            if compact:
                self.line(f" if n > {STRING_BYTES_MAX + 1}: raise long_string({name!r}, n - 1)")
            self._sized(target, name, "str(b[p:e], 'utf-8')", nullable, compact)
        elif isinstance(wire, Blob):
            self._long_length(compact)
            self._sized(target, name, "bytes(b[p:e])", nullable, compact)
        elif isinstance(wire, RecordsView):
            self.views = True
            self._long_length(compact)
            self._sized(target, name, "w[p:e]", nullable, compact)
        elif isinstance(wire, Array):
            self._array(target, name, wire, nullable, compact)
        elif nullable:
            self._flush("b", "n")
            self.line(f"if n <= {null}: {target} = None")
            self.line("else:")
            self.indent += 1
            self._nested(target, wire)
            self._flush()
            self.indent -= 1
        else:
            self._nested(target, wire)

    def _nested(self, target: str, cls: type[Any]) -> None:
        name = self.fresh("o")
        self._object(name, cls)
        self.line(f"{target} = {name}")

    def _length(self, classic: str, compact: bool) -> None:
        """Reads a length or count into n; a compact one as sent (plus one, 0 for null)."""
        if compact:
            self._flush("B", "n")
            self.line("if n > 127:")
            self.line(" n, p = rest(b, p, n)")
        else:
            self._flush(classic, "n")

    def _long_length(self, compact: bool) -> None:
        """As `_length` for bytes and records: most are longer than 127, so the two-byte case is inlined, too."""
        if compact:
            self._flush("B", "n")
            self.line("if n > 127:")
            self.line(" if b[p] < 128: n += (b[p] << 7) - 128; p += 1")
            self.line(" else: n, p = rest(b, p, n)")
        else:
            self._flush("i", "n")

    def _sized(self, target: str, name: str, value: str, nullable: bool, compact: bool) -> None:
        """Reads n bytes (n as sent) from p on, converted by the expression `value`."""
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
        empty = self.depth and may_be_large(self.cls) and name.startswith(("topics", "partition"))
        self.line(f"t += n or {EMPTY_LIST_ELEMENTS}" if empty else "t += n")
        self.line(f"if n < 0 or n * {least} > z - p: raise bad_count({name!r}, n, z - p)")
        self.line(f"if t > most: raise too_many({name!r}, t, most)")
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
                self.depth += 1
                self._object(item, element)
                self.depth -= 1
                self._flush()
            self.line(f"{items}.append({item})")
            self.indent -= 1
        if nullable:
            self.indent -= 1

    def _flush(self, code: str = "", target: str = "") -> None:
        run = self._run
        if code:
            run.append((code, target))
        if not run:
            return
        if run == [("B", "n")]:
            self.line("n = b[p]; p += 1")
        else:
            layout = layout_of("".join(c for c, _ in run))
            unpack = "u_" + layout.format[1:].replace("?", "z")
            self.namespace[unpack] = layout.unpack_from
            targets = ", ".join(t for _, t in run) + ("," if len(run) == 1 else "")
            self.line(f"{targets} = {unpack}(b, p); p += {layout.size}")
        self._run = []


def may_be_large(cls: type[Any]) -> bool:
    """Whether a message may exceed one turn: true for requests, which any client may send."""
    return cls.__name__.endswith("Request")


def _skip_tags(b: Buffer, p: int, n: int, t: int, limit: int) -> tuple[int, int]:
    """Skips `n` undeclared tagged fields (n: first byte of the count). Returns p and t after them."""
    if n > 127:
        n, p = read_uvarint_rest(b, p, n)
    t += n
    if n > DECODED_ELEMENTS_MAX or t > limit:
        raise _too_many_tags(n, t)
    for _ in range(n):
        p = _skip_tag(b, p)
    return p, t


def _too_many_tags(count: int, total: int) -> RemoteProtocolError:
    if total <= DECODED_ELEMENTS_MAX:
        return LargeMessage(f"{count} tagged fields, too many for one turn")
    return RemoteProtocolError(f"{count} tagged fields (at most {DECODED_ELEMENTS_MAX} elements and tags a message)")


def _skip_tag(b: Buffer, p: int) -> int:
    _, p = read_uvarint(b, p)
    size, p = read_uvarint(b, p)
    p += size
    if p > len(b):
        raise RemoteProtocolError(f"a tagged field reaches to byte {p} of {len(b)}")
    return p
