"""How a command declares its options, without the parser of the command line until that is needed.

The parser takes a third of a short command's time, so `produce` and `consume` are called without it where their arguments are
plain (`direct_call.py`). Annotations are evaluated only by the parser: `option` makes its `Parameter` then.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

OptionsT = TypeVar("OptionsT")

_flat: list[type] = []


def option(**settings: Any) -> Any:
    """Returns cyclopts' Parameter of these settings; it stands in annotations, which must be evaluated late."""
    from cyclopts import Parameter

    return Parameter(**settings)


def flat(options: type[OptionsT]) -> type[OptionsT]:
    """Marks a dataclass: its fields are options of each command that has a parameter of it."""
    _flat.append(options)
    if "cyclopts" in sys.modules:
        apply_flat()
    return options


def apply_flat() -> None:
    """Tells the parser, which must be imported, about all classes that are marked so far."""
    from cyclopts import Parameter

    while _flat:
        Parameter(name="*")(_flat.pop())
