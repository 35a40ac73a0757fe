"""Which module of the package imports which: no cycles, no import of the composition root, cores without the outside world.

Every import statement counts, also those under TYPE_CHECKING and inside functions: who needs a type of another module depends on it.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
COMPOSITION_ROOT = "barnabas.broker.node.node"
# The programs that start or draw a node. No other module of the package imports it.
STARTERS = {"barnabas.cli.node_program", "barnabas.testing.node_host", "barnabas.testing.simulation.process"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_graph() -> dict[str, set[str]]:
    """Modules of the package that each one imports."""
    paths = {module_of(path): path for path in (ROOT / "barnabas").rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}: relative import"
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= (names & paths.keys()) or {str(node.module)}
        graph[module] = (imported & paths.keys()) - {module}
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one cycle, the first named again at the end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_needs_itself_through_others() -> None:
    assert cycle_in(import_graph()) == []


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_nobody_imports_the_composition_root() -> None:
    importers = {module for module, imported in import_graph().items() if COMPOSITION_ROOT in imported}
    assert importers <= STARTERS


# Modules that run the tests of another module on something else, with the reason.
PLAYED_AGAIN = {
    "tests/oracle/test_cluster_soak.py": "the tests of tests/process on a real Kafka",
    "tests/oracle/test_transactions_over_brokers_soak.py": "the tests of tests/process on a real Kafka",
    "tests/pipeline/test_source.py": "the tests of Spark's own connector on ours",
}


def imports_of_tests(root: Path) -> set[tuple[str, str]]:
    """Imports of a test module by another module: (the importer's path, the test module)."""
    found = set()
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                tested = next((number for number, part in enumerate(parts) if part.startswith("test_")), None)
                if parts[0] == "tests" and tested is not None:
                    found.add((str(path.relative_to(root.parent)), ".".join(parts[: tested + 1])))
    return found


def test_test_modules_share_by_support() -> None:
    found = {pair for folder in ("tests", "bench", "examples") for pair in imports_of_tests(ROOT / folder)}
    surplus = sorted(pair for pair in found if pair[0] not in PLAYED_AGAIN)
    assert not surplus, f"move what both modules use to tests/support: {surplus}"
    assert {importer for importer, _ in found} == PLAYED_AGAIN.keys(), "take the others off PLAYED_AGAIN"


@pytest.mark.parametrize(
    ("statement", "imported"),
    [
        ("from tests.process.test_up import Up", {"tests.process.test_up"}),
        ("from tests.process import test_up", {"tests.process.test_up"}),
        ("def f():\n    import tests.process.test_up", {"tests.process.test_up"}),
        ("from tests.support.processes.up import Up", set()),
    ],
)
def test_an_import_of_a_test_module_is_found(tmp_path: Path, statement: str, imported: set[str]) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_other.py").write_text(statement + "\n")
    assert {module for _, module in imports_of_tests(tmp_path / "tests")} == imported


def contract(name: str) -> dict[str, Any]:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = (each for each in linter["contracts"] if each["name"] == name)
    return dict(found)


@pytest.mark.parametrize(
    ("imported", "kept"),
    [("import struct", True), ("import asyncio", False), ("if TYPE_CHECKING:\n    from made_up import shell", False)],
)
def test_the_rule_for_cores_bites(tmp_path: Path, imported: str, kept: bool) -> None:
    """The contract of pyproject.toml on a package of two modules: it sees imports of imports, and those for types."""
    rule = contract("Cores are pure")
    package = tmp_path / "made_up"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "core.py").write_text(f"from typing import TYPE_CHECKING\n{imported}\n")
    (package / "shell.py").write_text("import asyncio\n")
    forbidden = [name for name in rule.pop("forbidden_modules") if not name.startswith("barnabas.")]
    rule |= {"source_modules": ["made_up.core"], "forbidden_modules": forbidden, "ignore_imports": []}
    settings = {"root_package": "made_up", "include_external_packages": True}
    lines = ["[tool.importlinter]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    lines += ["[[tool.importlinter.contracts]]", *(f"{key} = {json.dumps(value)}" for key, value in rule.items())]
    (tmp_path / "pyproject.toml").write_text("\n".join(lines) + "\n")
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ("Cores are pure KEPT" in run.stdout, run.returncode == 0) == (kept, kept), run.stdout + run.stderr


def test_coordinators_replicas_and_the_quorum_are_cores() -> None:
    """The rule covers what decides about acknowledged records."""
    listed = contract("Cores are pure")["source_modules"]
    assert {"barnabas.broker.**.core", "barnabas.client.**.core", "barnabas.protocol", "barnabas.storage"} <= set(
        listed
    )
    for path in (
        "broker/replica/core/machine.py",
        "broker/replica/core/isr.py",
        "broker/quorum/core/machine.py",
        "client/producer/core/sender.py",
        "client/producer/core/transactions.py",
    ):
        assert (ROOT / "barnabas" / path).exists()
    assert {f"barnabas.broker.coordinator.{name}" for name in ("groups", "transactions")} <= set(listed)
