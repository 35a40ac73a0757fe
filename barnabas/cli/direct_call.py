"""Calls of `produce`, `consume` and `completion` whose arguments are plain, without the parser of the command line.

To import and run the parser takes a third of a short command's time. So the usual arguments are read here: options by their whole
names, each value in the next argument or after `=`. Anything else, also everything that is wrong, is left to the parser.
`tests/unit/cli/test_direct_call.py` compares both, so an option of these commands stands here as well as in its command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

DIGITS_MAX: Final = 18


class _NotPlain(Exception):
    """The parser must read these arguments."""


class DirectOption(NamedTuple):
    """An option of a command.

    Attributes:
        group: the parameter of the command that holds it, "" for a parameter of its own.
        field: the name of the parameter, or of the group's attribute.
        read: makes the value from its text; None for an option without a value, which is then True.
        many: whether it may be repeated.
    """

    group: str
    field: str
    read: Callable[[str], Any] | None = None
    many: bool = False


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
        raise _NotPlain
    return int(text)


def _seconds(text: str) -> float:
    return float(_number(text))


def _path(text: str) -> object:
    from pathlib import Path

    return Path(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise _NotPlain
        return text

    return read


_DECODE: Final = _one_of("utf-8", "hex", "base64", "json")

_CONNECTION: Final = {
    "--bootstrap-server": DirectOption("connection", "bootstrap_server", str),
    "--bootstrap": DirectOption("connection", "bootstrap_server", str),
    "-b": DirectOption("connection", "bootstrap_server", str),
    "--timeout": DirectOption("connection", "timeout", _seconds),
    "--profile": DirectOption("connection", "profile", str),
    "--command-config": DirectOption("connection", "command_config", _path),
}

_PRODUCE: Final = {
    **_CONNECTION,
    "--file": DirectOption("", "file", _path, many=True),
    "-f": DirectOption("", "file", _path, many=True),
    "--whole": DirectOption("", "whole"),
    "--compression": DirectOption("", "compression", _one_of("none", "gzip", "snappy", "lz4", "zstd")),
    "-z": DirectOption("", "compression", _one_of("none", "gzip", "snappy", "lz4", "zstd")),
    "--acks": DirectOption("", "acks", _one_of("all", "0", "1")),
    "--transactional-id": DirectOption("", "transactional_id", str),
    "--transaction-size": DirectOption("", "transaction_size", _number),
    "--property": DirectOption("", "properties", str, many=True),
    "-X": DirectOption("", "properties", str, many=True),
    "--key": DirectOption("lines", "key", str),
    "--key-separator": DirectOption("lines", "key_separator", str),
    "-K": DirectOption("lines", "key_separator", str),
    "--header": DirectOption("lines", "header", str, many=True),
    "-H": DirectOption("lines", "header", str, many=True),
    "--json": DirectOption("lines", "json_"),
    "--tombstone": DirectOption("lines", "tombstone"),
    "-Z": DirectOption("lines", "tombstone"),
    "--null-marker": DirectOption("lines", "null_marker", str),
    "--crlf": DirectOption("lines", "crlf"),
    "--partition": DirectOption("lines", "partition", _number),
    "-p": DirectOption("lines", "partition", _number),
    "--timestamp": DirectOption("lines", "timestamp", str),
}

_CONSUME: Final = {
    **_CONNECTION,
    "--pattern": DirectOption("", "pattern", str),
    "--partition": DirectOption("", "partition", _number, many=True),
    "-p": DirectOption("", "partition", _number, many=True),
    "--from-beginning": DirectOption("", "from_beginning"),
    "--offset": DirectOption("", "offset", str),
    "-o": DirectOption("", "offset", str),
    "--since": DirectOption("", "since", str),
    "--until": DirectOption("", "until", str),
    "--tail": DirectOption("", "tail", _number),
    "--max-records": DirectOption("", "max_records", _number),
    "-n": DirectOption("", "max_records", _number),
    "--exit-at-end": DirectOption("", "exit_at_end"),
    "-e": DirectOption("", "exit_at_end"),
    "--group": DirectOption("", "group", str),
    "--isolation": DirectOption("", "isolation", _one_of("read_uncommitted", "read_committed", "raw")),
    "--property": DirectOption("", "properties", str, many=True),
    "-X": DirectOption("", "properties", str, many=True),
    "--format": DirectOption("printing", "format", str),
    "-f": DirectOption("printing", "format", str),
    "--json": DirectOption("printing", "json_"),
    "--print-key": DirectOption("printing", "print_key"),
    "--decode": DirectOption("printing", "decode", _DECODE),
    "--decode-key": DirectOption("printing", "decode_key", _DECODE),
}

OPTIONS: Final[Mapping[str, Mapping[str, DirectOption]]] = {"produce": _PRODUCE, "consume": _CONSUME}
_ENVIRONMENT: Final = (("bootstrap_server", "BARNABAS_BOOTSTRAP"), ("profile", "BARNABAS_PROFILE"))

_Groups = dict[str, dict[str, Any]]


def direct_call(arguments: Sequence[str]) -> Callable[[], int] | None:
    """Returns the call of the command, or None if the parser must read the arguments."""
    if arguments[:1] == ["completion"] and arguments[1:] in (["bash"], ["zsh"], ["fish"]):
        return partial(print_completion, arguments[1])
    if not arguments or arguments[0] not in OPTIONS:
        return None
    try:
        topics, groups = _read(OPTIONS[arguments[0]], iter(arguments[1:]))
    except _NotPlain:
        return None
    for field, variable in _ENVIRONMENT:
        if variable in os.environ and field not in groups["connection"]:
            groups["connection"][field] = os.environ[variable]
    return _produce(topics, groups) if arguments[0] == "produce" else _consume(topics, groups)


def _read(options: Mapping[str, DirectOption], arguments: Iterator[str]) -> tuple[list[str], _Groups]:
    """The topics, and the values of the options by group and field."""
    topics: list[str] = []
    groups: _Groups = {"": {}, "connection": {}, "lines": {}, "printing": {}}
    for argument in arguments:
        if not argument.startswith("-"):
            topics.append(argument)
            continue
        name, equals, text = argument.partition("=") if argument.startswith("--") else (argument, "", "")
        option = options.get(name)
        if option is None:
            raise _NotPlain
        values = groups[option.group]
        if option.many:
            values[option.field] = (*values.get(option.field, ()), _value(option, equals, text, arguments))
        elif option.field in values:
            raise _NotPlain
        else:
            values[option.field] = _value(option, equals, text, arguments)
    if "" in topics:
        raise _NotPlain
    return topics, groups


def _value(option: DirectOption, equals: str, text: str, arguments: Iterator[str]) -> Any:
    if option.read is None:
        if equals:
            raise _NotPlain
        return True
    if not equals:
        text = next(arguments, "")
    if not text or text.startswith("-"):
        raise _NotPlain
    return option.read(text)


def _produce(topics: list[str], groups: _Groups) -> Callable[[], int] | None:
    if len(topics) != 1:
        return None
    from barnabas.cli.line_options import LineOptions
    from barnabas.cli.produce import produce
    from barnabas.cli.session import Connection

    connection = Connection(**groups["connection"])
    return partial(produce, *topics, **groups[""], lines=LineOptions(**groups["lines"]), connection=connection)


def _consume(topics: list[str], groups: _Groups) -> Callable[[], int]:
    from barnabas.cli.consume import consume
    from barnabas.cli.print_options import PrintOptions
    from barnabas.cli.session import Connection

    connection = Connection(**groups["connection"])
    return partial(consume, *topics, **groups[""], printing=PrintOptions(**groups["printing"]), connection=connection)


def print_completion(shell: str) -> int:
    """Prints the script of a shell, with the list of commands in its place."""
    from pathlib import Path

    folder = Path(__file__).parent / "completions"
    script, commands = ((folder / name).read_text() for name in (shell, "commands"))
    print(script.replace("@COMMANDS@", commands.rstrip()), end="")
    return 0
