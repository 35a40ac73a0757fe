"""What runs on Windows, as far as a POSIX machine can tell: the package imports, and the client and its commands work.

The client's program and the commands run in a process without what Windows lacks; their broker runs beside it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import as_on_windows
from tests.support.processes.as_on_windows import MODULES, NAMES
from tests.support.processes.fixtures import Serve

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "barnabas"
# Brokers with data directories, and processes that the command starts and kills. Windows refuses both (cli/serve.py).
POSIX_ONLY = {
    "cli/lab.py",
    "cli/local_cluster.py",
    "cli/node_program.py",
    "cli/up.py",
    "runtime/files.py",
    "runtime/process_stats.py",
    "testing/audit/runs.py",
    "testing/node_process.py",
    "testing/process_backend.py",
}

PROGRAM = """
import asyncio, sys
from barnabas.client import Admin, Consumer, Producer

async def main() -> None:
    async with Producer(bootstrap_servers=sys.argv[1]) as producer:
        await producer.send("windows", b"tea")
        await producer.flush()
    settings = {"bootstrap_servers": sys.argv[1], "auto_offset_reset": "earliest", "group_id": "g"}
    async with Consumer("windows", **settings, group_protocol="auto") as consumer:
        print((await consumer.getone()).value)
    async with Admin(bootstrap_servers=sys.argv[1]) as admin:
        print((await admin.describe_cluster()).brokers[0].node_id)

asyncio.run(main())
"""


def pretended(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, as_on_windows.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, input=more.get("input", ""))


def test_every_module_imports() -> None:
    done = pretended("import")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_client_and_its_commands_work(serve: Serve, tmp_path: Path) -> None:
    bootstrap = serve().bootstrap_servers
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = pretended("run", str(program), bootstrap)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["b'tea'", "1"]), done.stderr
    for line, given, shown in (
        (["topic", "create", "orders"], "", ""),
        (["produce", "orders"], "milk\n", ""),
        (["consume", "orders", "--from-beginning", "--exit-at-end"], "", "milk"),
        (["topic", "list"], "", "windows"),
        (["--version"], "", "hot loops"),
    ):
        where = [] if line == ["--version"] else ["-b", bootstrap]
        done = pretended("run", "barnabas", *line, *where, input=given)
        assert done.returncode == 0, (line, done.stderr)
        assert shown in done.stdout, line


@pytest.mark.parametrize("command", [["serve", "--listen", "127.0.0.1:0"], ["up", "--port", "0"]])
def test_brokers_are_refused_in_one_line(command: list[str]) -> None:
    done = pretended("run", "barnabas", *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"barnabas {command[0]}: brokers need Linux or macOS; on Windows run them in WSL")
    assert done.stderr.count("\n") == 1


def posix_names(path: Path) -> Iterator[str]:
    """What Windows lacks and a module uses without asking: names of os, signal and socket; imports that no `except` catches."""
    known = {module.__name__: set(names.split()) for module, names in NAMES.items()}
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in known.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            around = parents[node]
            if isinstance(around, ast.Module):
                yield from (name for name in names if name.partition(".")[0] in MODULES)


def test_no_other_module_uses_what_windows_lacks() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): set(posix_names(path)) for path in PACKAGE.rglob("*.py")}
    surplus = {name: names for name, names in found.items() if names and name not in POSIX_ONLY}
    assert not surplus, "guard it by hasattr or `except ImportError`, or move it to a module for brokers alone"
    assert not [name for name in POSIX_ONLY if not found.get(name)], "no longer needed"
