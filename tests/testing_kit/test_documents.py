"""The pages about testing run as they are printed, the reference is complete, and the recipes of examples/testing pass."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing import Cluster
from barnabas.testing.faults.handles import Fault
from barnabas.testing.fixtures import Wanted
from tests.support.snippets import snippets

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "testing" / "reference.md"
PAGES = (ROOT / "docs" / "testing.md", *sorted((ROOT / "docs" / "testing").glob("*.md")))
PLUGIN = (ROOT / "barnabas" / "testing" / "plugin.py").read_text()
EXAMPLES = ROOT / "examples" / "testing"
# The plugin by its module, whether the package is installed with its entry point or not: so others are named, too.
LEAKS = "error::barnabas.testing.LeakedClientWarning"
OPTIONS = ("-p", "barnabas.testing.plugin", "-p", "no:cacheprovider", "-W", LEAKS, "-q")
COROUTINES = (
    "-p",
    "pytest_asyncio.plugin",
    "-o",
    "asyncio_mode=auto",
    "-o",
    "asyncio_default_fixture_loop_scope=function",
)
SPARK = "test_sales.py"  # runs in tests/pipeline
FAUST = "test_wordcount.py"  # Faust takes ten seconds to notice that a changelog has aborted records alone
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}


def _pytest(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **ALONE})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.clients
def test_every_example_of_the_pages_is_a_test_that_passes(tmp_path: Path) -> None:
    for needed in ("aiokafka", "confluent_kafka", "pytest_asyncio"):
        pytest.importorskip(needed)
    blocks = [block for page in PAGES for block in snippets(page, "python")]
    blocks.append(snippets(ROOT / "README.md", "python")[0])
    assert len(blocks) >= 9
    for number, block in enumerate(blocks):
        assert "def test_" in block
        (tmp_path / f"test_block_{number}.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    passed = sum(block.count("def test_") for block in blocks)
    assert f"{passed} passed" in _pytest("-p", "pytest_asyncio.plugin", folder=tmp_path)


def test_the_reference_has_every_fixture() -> None:
    declared = re.findall(r"^@pytest\.fixture.*\ndef (\w+)\(", PLUGIN, re.MULTILINE)
    assert len(declared) > 15
    assert sorted(_named("Fixtures")) == sorted(declared)


def test_the_reference_has_every_option_of_the_marker() -> None:
    assert {each.partition("=")[0] for each in _named("The marker")} == set(Wanted._fields)


def test_the_reference_has_every_ini_key_and_command_line_option() -> None:
    assert sorted(_named("Ini keys")) == sorted(re.findall(r'addini\(\s*"(\w+)"', PLUGIN))
    options = {each.partition("=")[0] for each in _named("Command-line options")}
    assert options == set(re.findall(r'addoption\(\s*"(--[\w-]+)"', PLUGIN))


def test_the_reference_has_every_argument_of_a_cluster() -> None:
    assert _named("`Broker` and `Cluster`") == list(inspect.signature(Cluster).parameters)


def test_the_pages_name_every_method_of_a_cluster_and_of_a_fault() -> None:
    """In the first column of a table; a public name whose docstring begins with "For the kit" is not for tests."""
    rows = "\n".join(row for page in PAGES for row in re.findall(r"^\| (.+?) \|", page.read_text(), re.MULTILINE))
    named = {name.rpartition(".")[2] for each in _quoted(rows) for name in re.findall(r"^[\w.]+", each)}
    assert [each for each in _public(Cluster) if each not in named] == []
    assert [each for each in _public(Fault) if each not in named] == []
    methods = [
        each for each in _named("Methods of the handle") if each not in {"start()", "stop()", "start(wait=False)"}
    ]
    assert {re.split(r"[(.]", each.removeprefix("Cluster."))[0] for each in methods} <= set(_public(Cluster))


def _named(section: str) -> list[str]:
    """What the first column of the table in a section of the reference has between backticks."""
    text = REFERENCE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return list(
        dict.fromkeys(name for row in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for name in _quoted(row))
    )


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _public(kind: type) -> list[str]:
    return [
        name
        for name, value in vars(kind).items()
        if not name.startswith("_") and not (value.__doc__ or "").startswith("For the kit")
    ]


def test_every_link_of_the_pages_leads_somewhere() -> None:
    for page in (*PAGES, EXAMPLES / "README.md", ROOT / "README.md"):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            target, _, heading = link.partition("#")
            if target.startswith("http"):
                continue
            found = (page.parent / target).resolve() if target else page
            assert found.exists(), f"{page.name}: {link}"
            assert not heading or heading in _anchors(found), f"{page.name}: {link}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.clients
@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_recipes_pass(slow: bool) -> None:
    for each in ("pytest_asyncio", "kafka", "aiokafka", "confluent_kafka", "faststream.confluent", "faust"):
        pytest.importorskip(each)
    tests = [each for each in EXAMPLES.glob("test_*.py") if each.name != SPARK and (each.name == FAUST) == slow]
    written = sum(len(re.findall(r"^(?:async )?def test_", each.read_text(), re.MULTILINE)) for each in tests)
    shown = _pytest(*COROUTINES, "-c", "/dev/null", "--rootdir", str(EXAMPLES), *map(str, tests), folder=EXAMPLES)
    passed = re.search(r"^(\d+) passed", shown, re.MULTILINE)
    assert passed, shown
    assert int(passed[1]) >= written >= 2 * len(tests)


def test_every_recipe_is_listed_and_has_its_test() -> None:
    recipes = {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_")}
    assert recipes == set(re.findall(r"^\| `(\w+\.py)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert {f"test_{name}" for name in recipes} == {path.name for path in EXAMPLES.glob("test_*.py")}
