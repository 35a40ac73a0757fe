"""`produce` and `consume` without the parser of the command line: the same call that the parser makes, or none."""

from __future__ import annotations

import inspect
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from barnabas.cli.app import app
from barnabas.cli.direct_call import OPTIONS, direct_call

VALUES = (
    "7",
    "text",
    "gzip",
    "all",
    "raw",
    "json",
    "latest",
    "a=b",
    r"\t",
    "1.5",
    "a b",
    "x y=z",
    "010",
    "1e3",
    "--",
    "-1",
)


def _arguments(function: Any, *given: Any, **named: Any) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*given, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


def _parsed(words: list[str]) -> tuple[Any, dict[str, Any]]:
    function, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    return function, _arguments(function, *bound.args, **bound.kwargs)


def _direct(words: list[str]) -> tuple[Any, dict[str, Any]] | None:
    call = direct_call(words)
    if call is None:
        return None
    assert isinstance(call, partial)
    return call.func, _arguments(call.func, *call.args, **call.keywords)


def _same(words: list[str]) -> bool:
    """Whether the call was made directly; it is the parser's call then."""
    direct = _direct(words)
    if direct is not None:
        assert direct == _parsed(words), words
    return direct is not None


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_every_option_of_the_parser_is_read_directly(command: str) -> None:
    arguments = app[command].assemble_argument_collection(parse_docstring=True)
    names = {name for each in arguments if each.parameter.show is not False for name in each.names if name != "*"}
    assert names - {"TOPIC", "TOPICS", "--topic"} == set(OPTIONS[command])


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, options in OPTIONS.items() for name in sorted(options)]
)
def test_an_option_has_the_value_that_the_parser_reads(command: str, name: str) -> None:
    forms = [[name], *([name, value] for value in VALUES), *([f"{name}={value}"] for value in VALUES)]
    direct = 0
    for form in forms:
        direct += _same([command, "t", *form])
        direct += _same([command, *form, "t"])
    assert direct > 0
    assert _same([command, "t", *forms[1], *forms[1]]) in (OPTIONS[command][name].many, False)


@pytest.mark.parametrize(
    "words",
    [
        "produce orders",
        "produce orders -b localhost:9092 --acks all -z lz4 --timeout 3",
        "produce orders -K : -H a=b --header c=d -X linger.ms=5 --file one -f two",
        "produce orders --json --crlf -Z --whole --partition 3 --transactional-id t --transaction-size 10",
        "consume orders",
        "consume orders payments --from-beginning -e -n 10 --json",
        "consume --pattern o.* -p 1 --partition 2 --since 10m --until 5m",
        "consume orders -o earliest -f %s --print-key --decode hex --decode-key=json --group g --isolation raw",
        "consume",
    ],
)
def test_a_usual_call_is_made_directly(words: str) -> None:
    assert _same(words.split())


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--help",
        "topic list",
        "produce",
        "produce a b",
        "produce orders --help",
        "produce orders --unknown",
        "produce orders --acks 2",
        "produce orders --acks -1",
        "produce orders --acks=-1",
        "produce orders --key",
        "produce orders --key a --key b",
        "produce -- orders",
        "consume orders --tail x",
        "consume orders -en 5",
        "consume orders -o -5",
        "consume orders --exit-at-end=false",
        "consume orders --timeout 1.5",
    ],
)
def test_other_arguments_are_left_to_the_parser(words: str) -> None:
    assert direct_call(words.split()) is None


@pytest.mark.parametrize("given", ["", "-b here:1 --profile other"])
@pytest.mark.parametrize("name", ["BARNABAS_BOOTSTRAP", "BARNABAS_PROFILE"])
@pytest.mark.parametrize("value", ["there:2", ""])
def test_the_environment_has_the_parsers_meaning(
    name: str, value: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert _same(["consume", "orders", *given.split()])


def test_a_direct_call_imports_no_parser() -> None:
    script = (
        "import sys\n"
        "from barnabas.cli.direct_call import direct_call\n"
        "direct_call(['produce', 't'])\n"
        "direct_call(['consume', 't'])\n"
        "print([name for name in ('cyclopts', 'importlib.metadata', 'attr') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n"
