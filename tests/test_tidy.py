"""Tidy: the habits of the code base that neither the linter nor the type checker sees.

Each rule names its replacement, so that a failure tells what to do.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.server_keys import SERVER_KEYS
from barnabas.broker.topic_config import TOPIC_KEYS
from tests.support.key_readers import read_keys

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "barnabas"
MODULES = sorted(PACKAGE.rglob("*.py"))

MODULE_LINES_MAX = 600
DOCSTRING_LINES_MAX = 25
INTERNAL_TOPIC = re.compile(r"__(consumer_offsets|transaction_state|cluster_metadata|share_group_state)(-\d+)?")
HOME_OF_INTERNAL_TOPICS = Path("protocol/internal_topics.py")

# call -> (folders of the package where it is at home, what to use elsewhere)
BANNED: dict[str, tuple[tuple[str, ...], str]] = {
    "time.time": (("runtime", "cli"), "Clock.now_ms"),
    "time.time_ns": (("runtime", "cli"), "Clock.now_ms"),
    "time.monotonic": (("runtime", "cli"), "Clock.monotonic_ms"),
    "time.perf_counter": (("runtime", "cli"), "Clock.monotonic_ms"),
    "time.sleep": (("cli",), "loop.call_later or asyncio.sleep"),
    "datetime.now": ((), "Clock.now_ms"),
    "random.random": (("runtime",), "Rng.random"),
    "random.randrange": (("runtime",), "Rng.randrange"),
    "random.choice": (("runtime",), "Rng.randrange"),
    "random.shuffle": (("runtime",), "Rng.randrange"),
    "os.urandom": (("runtime",), "Rng.uuid"),
    "uuid.uuid4": (("runtime",), "Rng.uuid"),
    "uuid4": (("runtime",), "Rng.uuid"),
    "open": (("runtime", "cli"), "Disk.open"),
    "os.open": (("runtime", "cli"), "Disk.open"),
    "os.fsync": (("runtime",), "Disk.sync"),
    "loop.create_server": (("runtime",), "Network.listen"),
    "loop.create_connection": (("runtime",), "Network.connect"),
    "asyncio.open_connection": (("runtime",), "Network.connect"),
    "asyncio.start_server": (("runtime",), "Network.listen"),
    "asyncio.TaskGroup": ((), "runtime.scope.Scope"),
    "asyncio.wait": ((), "asyncio.gather, or tasks awaited in creation order"),
    "asyncio.as_completed": ((), "tasks awaited in creation order"),
    "asyncio.create_task": (("runtime", "cli"), "Scope.start"),
    "asyncio.ensure_future": ((), "Scope.start"),
    "threading.Thread": (("runtime",), "a coroutine"),
    "print": (("cli",), "logging, or the console of cli/"),
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def violations(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree = ast.parse(text)
    folder = path.relative_to(PACKAGE).parts[0]
    doc = ast.get_docstring(tree)
    if doc is None:
        yield f"{place(path)}:1 has no module docstring"
    elif doc.count("\n") + 1 > DOCSTRING_LINES_MAX:
        yield f"{place(path)}:1 module docstring has over {DOCSTRING_LINES_MAX} lines: move the rest to docs/"
    lines = text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{place(path)} has {lines} lines, over {MODULE_LINES_MAX}: split it by its concepts"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield f"{place(path)}:{node.lineno} public class {node.name} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"{place(path)}:{node.lineno} assert vanishes under -O: raise InvariantViolated"
        elif isinstance(node, ast.Constant) and INTERNAL_TOPIC.fullmatch(str(node.value)):
            if path.relative_to(PACKAGE) != HOME_OF_INTERNAL_TOPICS:
                yield f"{place(path)}:{node.lineno} names {node.value}: use protocol/internal_topics"
        elif isinstance(node, ast.Call):
            home = BANNED.get(dotted(node.func))
            if home is not None and folder not in home[0]:
                yield f"{place(path)}:{node.lineno} {dotted(node.func)}() is banned here: use {home[1]}"
    for number, line in enumerate(text.splitlines(), 1):
        suppression = re.search(r"# (type: ignore\S*|noqa\S*(?: [A-Z]+\d+)*)(.*)", line)
        if suppression and len(suppression.group(2).strip(" #-:,")) < 8:
            yield f"{place(path)}:{number} suppression without its reason beside it"


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_module_is_tidy(path: Path) -> None:
    found = list(violations(path))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1\n", "no module docstring"),
        ('"""Doc."""\nassert x\n', "InvariantViolated"),
        ('"""Doc."""\nimport time\ntime.time()\n', "Clock.now_ms"),
        ('"""Doc."""\nx = y  # type: ignore[attr-defined]\n', "without its reason"),
        ('"""Doc."""\nTOPIC = "__cluster_metadata-0"\n', "use protocol/internal_topics"),
        ('"""Doc."""\nclass Broker:\n    pass\n', "no docstring"),
        ('"""Doc."""\n' + "x = 1\n" * 700, "split it"),
    ],
)
def test_the_rules_bite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, complaint: str) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "barnabas")
    path = tmp_path / "barnabas" / "broker" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert any(complaint in v for v in violations(path))


def tracked_text_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout: the tracked files are unknown")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_paths_of_a_machine_in_tracked_files() -> None:
    home = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/[\w.]+")
    found = []
    for path in tracked_text_files():
        if path.suffix in {".bin", ".log", ".gz", ".zip", ".png"} or path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{place(path)}:{n}: {m.group(0)}"
            for n, line in enumerate(text.splitlines(), 1)
            if (m := home.search(line))
        ]
    assert not found, "absolute paths of one machine: " + ", ".join(found)


def unmarked(package: Path) -> list[str]:
    server, topic = read_keys(package, set(SERVER_KEYS))
    keys = [("server_keys", key, server) for key in SERVER_KEYS.values()]
    keys += [("topic_config", entry.key, topic) for entry in TOPIC_KEYS.values()]
    return [
        f"{table}: no code reads {key.name}: give it its effect, or mark it by without_effect"
        if key.no_effect is None
        else f"{table}: {key.name} is read: take the mark without_effect away"
        for table, key, read in keys
        if (key.name in read) == (key.no_effect is not None)
    ]


def test_every_setting_is_read_or_marked_as_without_effect() -> None:
    found = unmarked(PACKAGE)
    assert not found, "\n" + "\n".join(found)


def test_a_setting_that_nothing_reads_is_found(tmp_path: Path) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(
        'NAME = "num.partitions"\ndef f(config, log):\n    return config.get_int(NAME), log.config.segment_ms\n'
    )
    found = "\n".join(unmarked(tmp_path))
    assert "no code reads broker.rack:" in found
    assert "reads num.partitions:" not in found
    assert "reads segment.ms:" not in found
    reader.write_text('def f(config):\n    return config.get_int("num.io.threads")\n')
    assert "num.io.threads is read: take the mark" in "\n".join(unmarked(tmp_path))
