"""docs/testing.md, the test in README.md and examples/testing run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing.fixtures import MARKER_OPTIONS
from tests.support.snippets import snippets

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
EXAMPLES = ROOT / "examples" / "testing"
# The plugin by its module, whether the package is installed with its entry point or not: so others are named, too.
OPTIONS = ("-p", "barnabas.testing.plugin", "-p", "no:cacheprovider", "-W", "error:.*left clients connected", "-q")
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}


def _pytest(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **ALONE})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.clients
def test_every_example_of_the_page_is_a_test_that_passes(tmp_path: Path) -> None:
    for needed in ("aiokafka", "confluent_kafka", "pytest_asyncio"):
        pytest.importorskip(needed)
    blocks = [*snippets(PAGE, "python"), snippets(ROOT / "README.md", "python")[0]]
    assert len(blocks) == 9
    for number, block in enumerate(blocks):
        assert "def test_" in block
        (tmp_path / f"test_block_{number}.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    assert "9 passed" in _pytest("-p", "pytest_asyncio.plugin", folder=tmp_path)


def test_the_page_names_every_fixture_and_option() -> None:
    text = PAGE.read_text()
    plugin = (ROOT / "barnabas" / "testing" / "plugin.py").read_text()
    fixtures = re.findall(r"^@pytest\.fixture.*\ndef (\w+)\(", plugin, re.MULTILINE)
    assert len(fixtures) > 15
    assert [each for each in fixtures if f"`{each}`" not in text] == []
    assert [each for each in MARKER_OPTIONS if f"`{each}=" not in text] == []
    options = re.findall(r'"(--kafka-[\w-]+)"', plugin) + re.findall(r'addini\("(\w+)"', plugin)
    assert len(options) >= 4
    assert [each for each in options if each not in text] == []


@pytest.mark.clients
def test_the_recipes_pass() -> None:
    for needed in ("aiokafka", "confluent_kafka"):
        pytest.importorskip(needed)
    shown = _pytest("-c", "/dev/null", "--rootdir", str(EXAMPLES), str(EXAMPLES), folder=EXAMPLES)
    assert "6 passed" in shown


def test_every_recipe_is_listed_and_has_its_test() -> None:
    recipes = {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_")}
    assert recipes == set(re.findall(r"^\| `(\w+\.py)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert {f"test_{name}" for name in recipes} == {path.name for path in EXAMPLES.glob("test_*.py")}
