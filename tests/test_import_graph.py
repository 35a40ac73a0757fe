"""Which module of the package imports which: no cycles, and no module of the package imports the composition root.

Every import statement counts, also those under TYPE_CHECKING and inside functions: who needs a type of another module depends on it.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPOSITION_ROOT = "barnabas.broker.node"
# The programs that start or draw a node. No other module of the package imports it.
STARTERS = {"barnabas.cli.serve", "barnabas.testing.node_host", "barnabas.testing.simulation.process"}


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
