"""Code generator of message codecs: one function per version, compiled on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from barnabas.protocol.decoding import DecoderSource
from barnabas.protocol.encoding import EncoderSource
from barnabas.protocol.source import default_statements
from barnabas.protocol.wire import Field

_MISSING: Any = object()


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
