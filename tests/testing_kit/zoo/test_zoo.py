"""Each bug of the zoo is found by the test that its module has, and its correct twin passes that test."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from barnabas.testing import Broker, Cluster

pytestmark = pytest.mark.clients

for needed in ("aiokafka", "confluent_kafka", "kafka"):
    pytest.importorskip(needed)

from tests.testing_kit.zoo.keeper import Zoo  # noqa: E402  # it needs what the lines above look for

FOLDER = Path(__file__).parent
BUGS = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith(("_", "keeper", "test_")))
APPLICATION_LINES_MAX = 40


def _module(name: str) -> ModuleType:
    return import_module(f"tests.testing_kit.zoo.{name}")


def _run(name: str, correct: bool) -> None:
    module = _module(name)
    brokers, topics = getattr(module, "BROKERS", 1), getattr(module, "TOPICS", {"in": 1})
    with Broker() if brokers == 1 else Cluster(brokers) as kafka:
        for topic, partitions in {"out": 1, "dead": 1, **topics}.items():
            kafka.create_topic(topic, partitions)
        module.check(Zoo(kafka), correct)
        kafka.faults.verify()


def test_the_page_lists_all() -> None:
    page = (FOLDER.parents[2] / "docs" / "testing" / "bugs.md").read_text()
    assert sorted(re.findall(r"\[(\w+)\]\(\.\./\.\./tests/testing_kit/zoo/\1\.py\)", page)) == BUGS
    assert len(BUGS) == 22


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match=_module(name).SYMPTOM):
        _run(name, correct=False)


@pytest.mark.parametrize("name", BUGS)
def test_the_twin_is_clean(name: str) -> None:
    _run(name, correct=True)


@pytest.mark.parametrize("name", BUGS)
def test_the_application_is_small(name: str) -> None:
    source = inspect.getsource(_module(name)).partition("\nSYMPTOM")[2].partition("\ndef check(")[0]
    assert source.count("\n") <= APPLICATION_LINES_MAX
