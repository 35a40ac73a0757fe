"""The options of `produce` that say what a line means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from barnabas.cli.arguments import time_argument, unescaped
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.line_input import LineFormat


@Parameter(name="*")
@dataclass(frozen=True)
class LineOptions:
    """What a line means, as the user says it."""

    key: Annotated[str | None, Parameter(help="The key of every record.")] = None
    key_separator: Annotated[
        str | None,
        Parameter(name=["--key-separator", "-K"], help=r"The text before it in each line is the key; also \t \0 \x1f."),
    ] = None
    header: Annotated[
        tuple[str, ...], Parameter(name=["--header", "-H"], negative=(), help="NAME=VALUE, or NAME for null; repeated.")
    ] = ()
    json_: Annotated[
        bool, Parameter(name="--json", negative=(), help="Lines are records as `consume --json` writes them.")
    ] = False
    tombstone: Annotated[
        bool, Parameter(name=["--tombstone", "-Z"], negative=(), help="Write null for an empty value.")
    ] = False
    null_marker: Annotated[str | None, Parameter(help="A key or a value that equals this text is null.")] = None
    crlf: Annotated[bool, Parameter(negative=(), help="Remove the carriage return at the end of a line.")] = False
    partition: Annotated[
        int | None, Parameter(name=["--partition", "-p"], help="Write all records to this partition.")
    ] = None
    timestamp: Annotated[str | None, Parameter(help="Timestamp of every record: ms since 1970, or ISO 8601.")] = None

    def line_format(self, *, whole: bool) -> LineFormat:
        """The format of the lines; with `whole` that of whole files. Raises WrongCall: an option cannot be used, or two exclude each other."""
        if self.partition is not None and self.partition < 0:
            raise WrongCall(f"--partition {self.partition}: partitions are numbered from 0")
        if self.key_separator == "":
            raise WrongCall("--key-separator is empty")
        if self.key is not None and self.key_separator:
            raise WrongCall("--key and --key-separator exclude each other")
        if self.json_ and (self.key_separator or self.tombstone or self.null_marker is not None):
            raise WrongCall("--json has keys and nulls in its lines: no --key-separator, --tombstone or --null-marker")
        if whole and (self.json_ or self.key_separator or self.crlf):
            raise WrongCall("--whole reads no lines: no --json, --key-separator or --crlf")
        return LineFormat(
            json=self.json_,
            key=_data(self.key, "--key"),
            key_separator=_data(self.key_separator, "--key-separator"),
            null_marker=_data(self.null_marker, "--null-marker"),
            tombstone=self.tombstone,
            headers=tuple(_header(text) for text in self.header),
            crlf=self.crlf,
            timestamp=None if self.timestamp is None else time_argument(self.timestamp, "--timestamp"),
            partition=self.partition,
        )


DEFAULT_LINES: Final = LineOptions()


def _data(text: str | None, option: str) -> bytes | None:
    return None if text is None else unescaped(text, option)


def _header(text: str) -> tuple[str, bytes | None]:
    name, given, value = text.partition("=")
    if not name:
        raise WrongCall(f"--header {text!r}: NAME=VALUE is expected")
    return name, value.encode("utf-8", "surrogateescape") if given else None
