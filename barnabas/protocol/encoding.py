"""Generates encoders: straight-line Python from the objects of one (message, version) to its bytes.

Names in generated code: m the message, out the bytearray, parts the buffers before it if long records are passed by
reference.
"""

from __future__ import annotations

import struct
from typing import Any

from barnabas.errors import LocalProtocolError
from barnabas.protocol.primitives import encode_uvarint
from barnabas.protocol.source import Source, layout_of
from barnabas.protocol.wire import Array, Blob, Field, Fixed, RecordsView, Text, Wire, present, tagged

BY_REFERENCE_BYTES_MIN = 4096  # shorter records are cheaper to copy than to pass as a separate buffer


class EncoderSource(Source):
    """Writes `coder(out, m)`, or `coder(out, m, parts) -> last part` if long records are passed by reference."""

    def __init__(self, cls: type, version: int, *, by_reference: bool) -> None:
        super().__init__(cls, version)
        self._run: list[tuple[str, str]] = []  # pending fixed-width writes: (struct code, expression)
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
        return self.build(f"def coder(out, m{', parts' if self._by_reference else ''}):\n try:")

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
            self._value(f"{source}.{f.name}", f.wire, f.nullable(self.version), f.compact, null=b"\0")
            self._flush()
            prefix = encode_uvarint(f.tag or 0)
            self.line(f"{count} += 1; {block} += {prefix!r} + uvarint(len({self._out})) + {self._out}")
            self.indent -= 1
        self._out = outer
        self.line(f"{outer}.append({count}); {outer} += {block}")

    def _differs(self, value: str, f: Field) -> str:
        if f.default is None:
            return f"{value} is not None"
        if isinstance(f.wire, Array):
            return value if not f.nullable(self.version) else f"{value} is None or {value}"
        if isinstance(f.wire, type):
            nested = [self._differs(f"{value}.{each.name}", each) for each in present(f.wire, self.version)]
            return " or ".join([f"{value} is None", *nested] if f.nullable(self.version) else nested)
        return f"{value} != {f.default!r}"

    def _value(self, value: str, wire: Any, nullable: bool, compact: bool, null: bytes = b"\xff") -> None:
        """Writes one value. `null` marks a null struct: −1, or 0 in a tagged field, as in Kafka's generator."""
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
            self.line(f"if {held} is None: {self._out} += {null!r}")
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
        layout = layout_of("".join(c for c, _ in run))
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
