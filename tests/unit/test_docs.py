"""The documents that are drawn from the code say what the code says."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

from barnabas import client
from tests.support.log_templates import shown, templates

ROOT = Path(__file__).parent.parent.parent


def test_documents_are_fresh() -> None:
    check = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


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


RUN_BY = {  # the tests that run the Python examples of a page, each as it is printed
    "README.md": ("process/test_readme.py", "testing_kit/test_documents.py", "pipeline/test_snippets.py"),
    "docs/client.md": ("clients/test_client_page.py",),
    "docs/pipeline.md": ("pipeline/test_snippets.py",),
    "docs/simulation.md": ("simulation/test_docs.py",),
    "docs/testing.md": ("testing_kit/test_documents.py",),
}


def test_every_page_with_examples_is_run_by_a_test() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    with_examples = {page.relative_to(ROOT).as_posix() for page in pages if "```python\n" in page.read_text()}
    left = {
        page for page in with_examples if not page.startswith("docs/testing/")
    }  # run with docs/testing.md, all of them
    assert left == RUN_BY.keys()
    for page, tests in RUN_BY.items():
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


def test_every_log_line_is_explained() -> None:
    """tests/unit/test_log_documents.py says more about each line."""
    text = (ROOT / "docs" / "operations.md").read_text()
    missing = [place for place, template in templates() if template is None or f"`{shown(template)}`" not in text]
    assert missing == [], "explain the line in docs/operations.md, What each log line means"
