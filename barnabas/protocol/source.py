"""Source code of one generated function: lines, constants and default statements, for both directions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from barnabas.errors import LocalProtocolError
from barnabas.protocol.wire import Array, Field

_LAYOUTS: dict[str, struct.Struct] = {}


def flexible(cls: type[Any], version: int) -> bool:
    first, last = cls.VERSIONS
    since: int | None = cls.FLEXIBLE_SINCE
    if not first <= version <= last:
        raise LocalProtocolError(f"{cls.__name__} has versions {first}-{last}, not {version}")
    return since is not None and version >= since


def layout_of(codes: str) -> struct.Struct:
    made = _LAYOUTS.get(codes)
    if made is None:
        made = _LAYOUTS[codes] = struct.Struct(">" + codes)
    return made


def default_statements(target: str, f: Field, constant: Callable[[str, Any], str]) -> list[str]:
    """Statements that set `target` to a field's default. `constant` names a value in the generated function."""
    default = f.default
    if default is None or not isinstance(f.wire, (Array, type)):
        if default is None or isinstance(default, (bool, int, str, bytes)):
            return [f"{target} = {default!r}"]
        return [f"{target} = {constant('k', default)}"]
    if isinstance(f.wire, Array):
        return [f"{target} = []"]
    made = [f"{target} = {constant('new', object.__new__)}({constant('C', f.wire)})"]
    nested_cls: type[Any] = f.wire
    fields: tuple[Field, ...] = nested_cls.FIELDS
    for nested in fields:
        made += default_statements(f"{target}.{nested.name}", nested, constant)
    return made


class Source:
    """Lines of one generated function, and its constants."""

    def __init__(self, cls: type[Any], version: int) -> None:
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
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        for name, held in self.namespace.items():
            if held is value and name.startswith(prefix):
                return name
        name = f"{prefix}_{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def build(self, head: str) -> Any:
        source = head + "\n" + "\n".join(self.lines)
        exec(compile(source, f"<{self.cls.__name__} v{self.version}>", "exec"), self.namespace)
        return self.namespace["coder"]
