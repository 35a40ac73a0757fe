"""The documents that are drawn from the code say what the code says."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

from barnabas import client
from barnabas.protocol.registry import API

ROOT = Path(__file__).parent.parent.parent
REMOVED = range(4, 8)  # LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown: Kafka 4 has no versions of them


def test_documents_are_fresh() -> None:
    check = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


def test_every_api_of_kafka_is_served_or_listed_as_not_served() -> None:
    listed = _text("coverage.md").partition("## APIs not served")[2].partition("\n## ")[0]
    not_served = [
        int(key) for keys in re.findall(r"^\| ([\d, ]+) \|", listed, re.MULTILINE) for key in keys.split(", ")
    ]
    assert sorted([*(api.key for api in API.values()), *not_served]) == [key for key in range(93) if key not in REMOVED]


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(
        r"`((?:unit|node|process|simulation|clients|oracle|pipeline|testing_kit)/[\w/]+\.py)::(\w+)`", _text("proof.md")
    )
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^(?:async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_step_of_a_call_chain_exists() -> None:
    """Lines "module.py  function-or-Class.method  what it does" in the code blocks of ARCHITECTURE.md."""
    steps = re.findall(r"^(\w+/[\w/]+\.py) +(\w+(?:\.\w+)?)(?= |$)", _text("ARCHITECTURE.md"), re.MULTILINE)
    assert len(steps) > 70
    missing = [f"{path} {name}" for path, name in steps if name not in _definitions(ROOT / "barnabas" / path)]
    assert not missing, "docs/ARCHITECTURE.md names functions that do not exist (any more)"


def test_every_module_that_is_named_exists() -> None:
    files = [
        f"/{path.relative_to(ROOT)}"
        for top in ("barnabas", "tests", "docs", "bench")
        for path in (ROOT / top).rglob("*.py")
    ]
    for document in ("docs/ARCHITECTURE.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?<![\w/>])[a-z][\w/]*\.py\b", (ROOT / document).read_text())) - {"setup.py"}
        assert len(named) > 15
        missing = [path for path in sorted(named) if not any(file.endswith(f"/{path}") for file in files)]
        assert not missing, document


def test_what_newcomers_are_told_to_use_is_there() -> None:
    """The first column of "coming from": classes, methods, and settings with their defaults."""
    rows = re.findall(r"^\| (.+?) \|", _text("client.md").partition("## Coming from")[2], re.MULTILINE)[2:]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 25
    classes = (client.Producer, client.Consumer, client.Admin)
    settings = {name: p.default for each in classes for name, p in inspect.signature(each).parameters.items()}
    known = {name for each in classes for name in (each.__name__, *dir(each))} | settings.keys()
    for text in named:
        name, _, value = re.sub(r"^(?:await|async with|async for) ?|[(:].*", "", text).partition("=")
        assert not name or name in known, text
        if re.fullmatch(r"\d+|\".*\"", value):
            assert settings[name] == ast.literal_eval(value), text


RUN_BY = {  # the tests that run the examples of a page in a language, each as it is printed
    ("README.md", "python"): (
        "process/test_readme.py",
        "testing_kit/test_documents.py",
        "pipeline/test_snippets.py",
    ),
    ("README.md", ""): ("process/test_readme.py",),
    ("docs/cli.md", "console"): ("process/test_cli_page.py",),
    ("docs/cluster.md", "yaml"): ("unit/test_compose_file.py",),
    ("docs/client.md", "python"): ("clients/test_client_page.py",),
    ("docs/operations.md", "yaml"): ("testing_kit/test_boards.py",),
    ("docs/pipeline.md", "python"): ("pipeline/test_snippets.py", "pipeline/test_cluster_page.py"),
    ("docs/pipeline.md", "bash"): ("pipeline/test_cluster_page.py",),
    ("docs/simulation.md", "python"): ("simulation/test_docs.py",),
    ("docs/testing.md", "python"): ("testing_kit/test_documents.py",),
    ("docs/testing/faults.md", "sh"): ("testing_kit/test_fault_documents.py",),
    ("docs/testing/faults.md", "yaml"): ("testing_kit/test_fault_documents.py",),
    ("docs/testing/trace-format.md", "json"): ("testing_kit/test_failure_report.py",),
    ("docs/security.md", "bash"): ("process/test_certificate_recipes.py",),
    ("CONTRIBUTING.md", ""): ("process/test_contributing.py",),
}
PARSED = "long-running or needs what a test has not; the command line accepts every command (unit/cli/test_documented_commands.py)"
NOT_RUN = {  # why no test runs them
    ("docs/ARCHITECTURE.md", ""): "lists of modules and call chains; tests of this file check every name",
    ("docs/cli.md", "sh"): PARSED,
    ("docs/cluster.md", ""): PARSED,
    ("docs/coverage.md", "mermaid"): "drawn from the code; test_documents_are_fresh",
    ("docs/operations.md", ""): PARSED,
    ("docs/pipeline.md", ""): PARSED,
    ("docs/security.md", "sh"): PARSED,
    ("docs/security.md", "properties"): "names files of a production; process/test_tls.py starts nodes with these keys",
    ("docs/testing/audit.md", ""): "a table that the audit prints",
    ("docs/testing/history.md", ""): "a report that a failed test prints, and a command that the command line accepts",
    ("examples/flights/README.md", ""): PARSED,
}


def _examples() -> set[tuple[str, str]]:
    """Pages with fenced examples, with the language of each. The Python of docs/testing/ runs with that of docs/testing.md."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = set()
    examples = [each for each in (ROOT / "examples").rglob("*.md") if "node_modules" not in each.parts]
    for page in [*pages, *examples]:
        name, opened = page.relative_to(ROOT).as_posix(), False
        for fence in re.findall(r"^ *```(\w*)", page.read_text(), re.MULTILINE):
            opened = not opened
            if opened and not (fence == "python" and name.startswith("docs/testing/")):
                found.add((name, fence))
    return found


def test_every_example_is_run_by_a_test_or_has_a_reason() -> None:
    assert not RUN_BY.keys() & NOT_RUN.keys()
    assert _examples() == RUN_BY.keys() | NOT_RUN.keys()
    for (page, _), tests in RUN_BY.items():
        for test in tests:
            assert Path(page).name in (ROOT / "tests" / test).read_text(), (page, test)


def _definitions(path: Path) -> set[str]:
    """The functions, classes and methods that a module defines; a method as "Class.method"."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}.{each.name}" for each in methods)
    return found


def _text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()
