"""Code generator of message codecs: one function per version, compiled on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.ports import Buffer
from barnabas.protocol.decoding import DecoderSource
from barnabas.protocol.encoding import EncoderSource
from barnabas.protocol.source import default_statements
from barnabas.protocol.wire import Field

_MISSING: Any = object()


class Decoders(dict[int, Callable[..., tuple[Any, int]]]):
    """Version → decoder of one message, generated on first use."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, version: int) -> Callable[..., tuple[Any, int]]:
        made: Callable[..., tuple[Any, int]] = DecoderSource(self._cls, version).compile()
        self[version] = made
        return made


class Encoders(dict[int, Callable[[bytearray, Any], None]]):
    """Version → encoder of one message into a bytearray."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, version: int) -> Callable[[bytearray, Any], None]:
        made: Callable[[bytearray, Any], None] = EncoderSource(self._cls, version, by_reference=False).compile()
        self[version] = made
        return made


class PartsEncoders(dict[int, Callable[[bytearray, Any, list[Buffer]], bytearray]]):
    """Version → encoder that passes long records by reference: fills the list of parts and returns the last one."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, version: int) -> Callable[[bytearray, Any, list[Buffer]], bytearray]:
        made: Callable[[bytearray, Any, list[Buffer]], bytearray]
        made = EncoderSource(self._cls, version, by_reference=True).compile()
        self[version] = made
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
