"""The options of `consume` that say how a record is printed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.record_format import Decode, Shown, as_json, as_template, as_values


@Parameter(name="*")
@dataclass(frozen=True)
class PrintOptions:
    """How a record is printed, as the user says it."""

    format: Annotated[
        str, Parameter(name=["--format", "-f"], help=r"value, json, or a template such as '%t-%p@%o %k=%s\n'.")
    ] = "value"
    json_: Annotated[
        bool,
        Parameter(name="--json", negative=(), help="One JSON object a record, on one line (indented on a terminal)."),
    ] = False
    print_key: Annotated[bool, Parameter(negative=(), help="Print the key and a tab before each value.")] = False
    decode: Annotated[Decode | None, Parameter(help="Print values as utf-8, hex, base64 or json.")] = None
    decode_key: Annotated[Decode | None, Parameter(help="The same for keys.")] = None

    @property
    def values_only(self) -> bool:
        """Whether nothing but the values is printed, as they are."""
        return self == PrintOptions()

    def shown(self) -> Shown:
        """The function that makes the text of records.

        Raises WrongCall: an unknown format, token or escape, or options that exclude each other.
        """
        indent = 2 if sys.stdout.isatty() else None
        if self.json_ and self.format not in ("value", "json"):
            raise WrongCall("--json and a template exclude each other")
        if self.json_ or self.format == "json":
            if self.print_key:
                raise WrongCall("--json shows the key already: no --print-key")
            return as_json(self.decode, self.decode_key, indent=indent)
        if self.format == "value":
            return as_values(self.decode, self.decode_key, print_key=self.print_key, indent=indent)
        if "%" not in self.format and "\\" not in self.format:
            raise WrongCall(f"--format {self.format!r} is neither value, json nor a template with tokens such as %s")
        if self.print_key:
            raise WrongCall("a template shows the key by %k: no --print-key")
        return as_template(self.format, self.decode, self.decode_key)


DEFAULT_PRINT: Final = PrintOptions()
