"""Import paths of the client: the public names, and the packages that also export them."""

from __future__ import annotations

import builtins
import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from barnabas import client
from barnabas import errors as package_errors
from barnabas.client import Record, TopicPartition
from barnabas.client import errors as client_errors

ALSO_IN = {
    "admin": ["Admin", "NewTopic"],
    "consumer": ["Consumer", "ConsumerConfig"],
    "errors": ["KafkaError", "ProducerFenced"],
    "exactly_once": ["CopyProgress", "NewMessage", "exactly_once"],
    "group": ["RebalanceListener"],
    "producer": ["Producer", "ProducerConfig", "Transaction"],
    "types": ["OffsetAndMetadata", "Record", "RecordMetadata", "TopicPartition"],
}


def test_every_public_name_exists() -> None:
    assert len(set(client.__all__)) == len(client.__all__)
    assert all(hasattr(client, name) for name in client.__all__)


@pytest.mark.parametrize("module", ALSO_IN)
def test_names_are_the_same_in_their_module(module: str) -> None:
    found = importlib.import_module(f"barnabas.client.{module}")
    for name in ALSO_IN[module]:
        assert getattr(found, name) is getattr(client, name)


def test_a_record_is_a_generic_tuple_without_attributes_of_its_own() -> None:
    record = Record[bytes, bytes](7, 1, b"k", b"v", (), "t", 2, 0, 3)
    assert type(record) is Record
    assert record.topic_partition == TopicPartition("t", 2)
    assert record._replace(value=4).value == 4
    assert pickle.loads(pickle.dumps(record)) == record
    assert record == (7, 1, b"k", b"v", (), "t", 2, 0, 3)
    assert not hasattr(record, "__dict__")


def documented(module: ModuleType = client) -> Iterator[tuple[str, str]]:
    """The public names of a module, their methods, and the docstring of each."""
    for name in module.__all__:
        each = getattr(module, name)
        if not (inspect.isclass(each) or inspect.isfunction(each)):
            continue
        yield name, inspect.getdoc(each) or ""
        for method, value in inspect.getmembers(each) if inspect.isclass(each) else ():
            function = value.fget if isinstance(value, property) else value
            if not method.startswith("_") and inspect.isfunction(function) and _is_ours(function):
                yield f"{name}.{method}", inspect.getdoc(value) or ""


def _is_ours(function: Any) -> bool:
    return str(function.__module__).startswith("barnabas.")


def named_exceptions(text: str) -> set[str]:
    """The names of a "Raises:" section, and the exceptions of the package that the text names elsewhere."""
    section = re.search(r"^Raises:\n((?:[ \t]+.*\n?|\n)+)", text, re.MULTILINE)
    raised = re.findall(r"^    (\w[\w, ]*):", section.group(1), re.MULTILINE) if section else []
    known = {
        name
        for module in (package_errors, client_errors)
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    return {name for names in raised for name in names.split(", ")} | (set(re.findall(r"\b[A-Z]\w+", text)) & known)


def test_every_exception_that_a_docstring_names_is_exported() -> None:
    assert named_exceptions("Does it.\n\nRaises:\n    Odd, Other: why.\n        More.\n\nNotKafka.") == {
        "Odd",
        "Other",
        "NotKafka",
    }
    found = {(where, name) for where, text in documented() for name in named_exceptions(text)}
    assert len(found) > 40
    assert not {(where, name) for where, name in found if name not in client.__all__ and not hasattr(builtins, name)}


def test_every_error_is_exported_and_documented() -> None:
    """Also those that a module defines for itself."""
    for module in pkgutil.walk_packages(client.__path__, "barnabas.client."):
        importlib.import_module(module.name)
    classes, left = {client.KafkaError}, [client.KafkaError]
    while left:
        below = left.pop().__subclasses__()
        classes.update(below)
        left += below
    ours = {each.__name__ for each in classes if each.__module__.startswith("barnabas.client.")}
    assert len(ours) > 25
    assert ours <= set(client.__all__)
    page = (
        (Path(__file__).parents[3] / "docs" / "client.md").read_text().partition("## Errors")[2].partition("\n## ")[0]
    )
    assert ours == set(re.findall(r"`([A-Z]\w+)`", page)) - {"ErrorCode"}


@pytest.mark.parametrize("name", ["client", "errors", "pipeline", "testing"])
def test_every_public_name_has_a_docstring_that_begins_with_one_plain_line(name: str) -> None:
    if name == "pipeline":
        pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    wrong = []
    for where, text in documented(importlib.import_module(f"barnabas.{name}")):
        first, *others = text.split("\n")
        if len(first) > 125 or not first.endswith((".", ":")) or (others and others[0].strip()):
            wrong.append((where, first))
    assert not wrong


def test_coroutines_and_times_are_explained() -> None:
    """What a call raises, and the unit of a time, are in its docstring or in that of its class."""
    wrong = []
    for name in client.__all__:
        each = getattr(client, name)
        if not inspect.isclass(each) or issubclass(each, BaseException | tuple):
            continue
        of_class = inspect.getdoc(each) or ""
        for method, value in inspect.getmembers(each, inspect.isfunction):
            if method.startswith("_"):
                continue
            text = f"{inspect.getdoc(value)}\n{of_class}"
            if inspect.iscoroutinefunction(value) and name != "RebalanceListener" and not named_exceptions(text):
                wrong.append(f"{name}.{method} does not say what it raises")
            if "_ms" in str(inspect.signature(value)) and not re.search(r"\bms\b|millisecond", text):
                wrong.append(f"{name}.{method} does not say the unit of its times")
    assert not wrong
