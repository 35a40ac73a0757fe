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

from barnabas.broker.config.table import SERVER_KEYS, TOPIC_KEYS
from barnabas.protocol.registry import API
from tests.support.key_readers import read_keys

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "barnabas"
MODULES = sorted(PACKAGE.rglob("*.py"))

DOCSTRING_LINES_MAX = 25
INTERNAL_TOPIC = re.compile(r"__(consumer_offsets|transaction_state|cluster_metadata|share_group_state)(-\d+)?")
HOME_OF_INTERNAL_TOPICS = Path("protocol/internal_topics.py")
ANY_IN_BROKER_MAX = 48  # uses of the type Any in barnabas/broker; lower it when you remove some

# Physical lines of code, and words of hand-written documents: they fall, and only a new feature raises them by what it needs.
LINES_MAX = {"barnabas": 111_580, "tests": 116_525}
WORDS_MAX = 45_000
DRAWN = ("configuration.md", "coverage.md", "metrics.md")  # tables

# call -> (folders of the package where it is at home, what to use elsewhere)
BANNED: dict[str, tuple[tuple[str, ...], str]] = {
    "time.time": (("runtime", "cli"), "Clock.now_ms"),
    "time.time_ns": (("runtime", "cli"), "Clock.now_ms"),
    "time.monotonic": (("runtime", "cli"), "Clock.monotonic_ms"),
    "time.perf_counter": (("runtime", "cli"), "Clock.monotonic_ms"),
    "time.sleep": (("cli", "testing"), "loop.call_later or asyncio.sleep"),
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
    "logging.basicConfig": (("cli", "testing"), "logging.getLogger: programs choose handlers"),
    "logging.FileHandler": (("cli", "testing"), "logging.getLogger: programs choose handlers"),
    "logging.StreamHandler": (("cli", "testing"), "logging.getLogger: programs choose handlers"),
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def uses_of_any(text: str) -> int:
    """How often a module names the type Any, outside of imports."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(ast.parse(text)))


def violations(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree = ast.parse(text)
    folder = path.relative_to(PACKAGE).parts[0]
    doc = ast.get_docstring(tree)
    if doc is None:
        yield f"{place(path)}:1 has no module docstring"
    elif doc.count("\n") + 1 > DOCSTRING_LINES_MAX:
        yield f"{place(path)}:1 module docstring has over {DOCSTRING_LINES_MAX} lines: move the rest to docs/"
    for top in tree.body:
        if isinstance(top, ast.ClassDef) and not top.name.startswith("_") and ast.get_docstring(top) is None:
            yield f"{place(path)}:{top.lineno} public class {top.name} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"{place(path)}:{node.lineno} assert vanishes under -O: raise InvariantViolated"
        elif isinstance(node, ast.Import | ast.ImportFrom) and folder not in ("cli", "testing"):
            names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
            if names & {"logging.handlers", "logging.config"}:
                yield f"{place(path)}:{node.lineno} handlers of logging: programs choose them, use logging.getLogger"
            if any((name or "").split(".")[0] == "gssapi" for name in names):
                yield f"{place(path)}:{node.lineno} mypy would depend on whether gssapi is there: use importlib"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and INTERNAL_TOPIC.fullmatch(node.value):
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


def test_the_broker_uses_any_no_more_than_it_did() -> None:
    counts = {path: uses_of_any(path.read_text()) for path in MODULES if path.is_relative_to(PACKAGE / "broker")}
    found = sum(counts.values())
    most = sorted(((count, place(path)) for path, count in counts.items()), reverse=True)[:10]
    assert found <= ANY_IN_BROKER_MAX, f"Any is used {found} times in barnabas/broker, most in {most}: name the type"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1\n", "no module docstring"),
        ('"""Doc."""\nassert x\n', "InvariantViolated"),
        ('"""Doc."""\nimport time\ntime.time()\n', "Clock.now_ms"),
        ('"""Doc."""\nx = y  # type: ignore[attr-defined]\n', "without its reason"),
        ('"""Doc."""\nimport logging.handlers\n', "programs choose them"),
        ('"""Doc."""\nimport gssapi.raw\n', "use importlib"),
        ('"""Doc."""\nTOPIC = "__cluster_metadata-0"\n', "use protocol/internal_topics"),
        ('"""Doc."""\nclass Broker:\n    pass\n', "no docstring"),
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


@pytest.mark.parametrize("folder", LINES_MAX)
def test_the_code_only_gets_smaller(folder: str) -> None:
    lines = sum(len(path.read_bytes().splitlines()) for path in (ROOT / folder).rglob("*.py"))
    assert lines <= LINES_MAX[folder], f"{folder} has {lines} lines: take as many out as came in, and lower LINES_MAX"


def test_the_documents_only_get_smaller() -> None:
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    pages += [page for page in (ROOT / "docs").rglob("*.md") if page.name not in DRAWN]
    words = sum(len(page.read_text().split()) for page in pages)
    assert words <= WORDS_MAX, f"the documents have {words} words: shorten them, and lower WORDS_MAX"


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
    keys = [("nodes", key, server) for key in SERVER_KEYS.values()]
    keys += [("topics", key, topic) for key in TOPIC_KEYS.values()]
    return [
        f"{table}: no code reads {key.name}: give it its effect, or mark it by no_effect"
        if key.no_effect is None
        else f"{table}: {key.name} is read: take the mark no_effect away"
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


WITHOUT_SLEEPS = ("unit", "node", "support/bench", "support/broker", "support/storage")


def real_sleeps(tests: Path) -> list[str]:
    """Calls of sleep() with a time, in tests that run on the real clock."""
    paths = [path for folder in WITHOUT_SLEEPS for path in sorted((tests / folder).rglob("*.py"))]
    found = []
    for path in [*paths, tests / "support" / "waiting.py"]:
        text = path.read_text()
        if "barnabas.testing.simulation" in text:
            continue  # its time is virtual
        found += [
            f"{path.relative_to(tests)}:{node.lineno} sleeps: use tests/support/waiting.py, or the simulated clock"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call)
            and dotted(node.func).endswith("sleep")
            and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
        ]
    return found


def test_tests_in_one_process_do_not_sleep() -> None:
    found = real_sleeps(ROOT / "tests")
    assert not found, "\n" + "\n".join(found)


def test_a_sleep_in_a_test_is_found(tmp_path: Path) -> None:
    for name, text in (
        ("unit/test_a.py", "time.sleep(0.1)\n"),
        ("node/test_b.py", "await asyncio.sleep(0)\nawait asyncio.sleep(pause)\n"),
        ("unit/test_c.py", "from barnabas.testing.simulation.world import World\nawait asyncio.sleep(1)\n"),
        ("support/waiting.py", ""),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [line.split()[0] for line in real_sleeps(tmp_path)] == ["unit/test_a.py:1", "node/test_b.py:2"]


def node_imports(tests: Path) -> list[str]:
    """Imports of Node, or of what starts one, in tests/unit."""
    starting = re.compile(
        r"^(?:from|import) (?:barnabas\.broker\.node(?:\.node\b| import)|tests\.support\.broker\.nodes\b)", re.MULTILINE
    )
    return [
        f"{path.relative_to(tests)} starts a Node: its place is tests/node"
        for path in sorted((tests / "unit").rglob("*.py"))
        if starting.search(path.read_text())
    ]


def test_unit_tests_start_no_node() -> None:
    found = node_imports(ROOT / "tests")
    assert not found, "\n" + "\n".join(found)


def test_an_import_of_node_in_a_unit_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_a.py").write_text("from barnabas.broker.node.node import Node\n")
    (tmp_path / "unit" / "test_b.py").write_text("from barnabas.broker.node_config import x\n")
    assert [line.split()[0] for line in node_imports(tmp_path)] == ["unit/test_a.py"]


# What starts `barnabas serve` besides the test kit.
STARTERS = {"OpenBroker", "ServedBroker", "barnabas_nodes", "secured_nodes", "served_world"}


def other_starts(tests: Path) -> list[str]:
    """Starts of brokers in tests/process and tests/clients, not by the test kit and without a reason; new ways to start one."""
    found = []
    for path in [each for folder in ("process", "clients") for each in sorted((tests / folder).rglob("*.py"))]:
        lines = path.read_text().splitlines()
        found += [
            f"{path.relative_to(tests)}:{name.lineno} imports {name.name}: use the test kit (tests/support/processes/fixtures.py, "
            "kit_cluster.py), or write `# not the kit: ` and what it lacks behind the import"
            for node in ast.walk(ast.parse("\n".join(lines)))
            if isinstance(node, ast.ImportFrom)
            for name in node.names
            if name.name in STARTERS
            and not any("# not the kit: " in line for line in lines[node.lineno - 1 : node.end_lineno])
        ]
    return found + [
        f"{path.relative_to(tests)}:{node.lineno} starts `barnabas serve`: use ServedBroker"
        for path in sorted((tests / "support").rglob("*.py"))
        if path.name != "served.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "serve"
    ]


def test_brokers_are_started_by_the_kit() -> None:
    found = other_starts(ROOT / "tests")
    assert not found, "\n" + "\n".join(found)


def test_another_start_of_a_broker_is_found(tmp_path: Path) -> None:
    for name, text in (
        ("process/test_a.py", "from tests.support.processes.served import ServedBroker\n"),
        ("clients/test_b.py", "from tests.support.processes.served import ServedBroker  # not the kit: a reason\n"),
        ("support/served.py", 'COMMAND = ["barnabas", "serve"]\n'),
        ("support/starter.py", 'COMMAND = ["barnabas", "serve"]\n'),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [line.split()[0] for line in other_starts(tmp_path)] == ["process/test_a.py:1", "support/starter.py:1"]


# Public names that modules of different folders define, with the reason. Every other name has one meaning and one definition.
TWO_SIDES = "the broker's side and the client's side of one thing; neither package imports the other"
CODEC = "each format has its codec; the module says of what"
SHARED_NAMES = {
    "Assignor": TWO_SIDES,
    "ClassicGroup": TWO_SIDES,
    "ConfigEntry": TWO_SIDES,
    "Connection": TWO_SIDES,
    "ConsumerGroup": TWO_SIDES,
    "ConsumerMember": TWO_SIDES,
    "Group": TWO_SIDES,
    "Record": "a record as the codec decodes it, and the client's public class with its topic and partition",
    "Segment": "a segment of a log: open in storage, a path with offsets for an export",
    "TopicPartition": "a topic and a partition: a plain tuple in the broker, the client's public class",
    "assign_range": TWO_SIDES,
    "decode": CODEC,
    "decode_record": CODEC,
    "encode_record": CODEC,
    "main": "the entry point of a program",
}


def public_definitions(tree: ast.Module) -> Iterator[str]:
    """Names of the public classes, type aliases and functions of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if len(name) == 1 or not re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                continue  # a type variable or a constant
        else:
            continue
        if not name.startswith("_"):
            yield name


def shared_names(package: Path) -> dict[str, list[str]]:
    """The modules of every public name that is defined in several folders.

    Two kinds of names are Kafka's and do not count: structs of protocol/messages, and functions with the name of an API.
    """
    apis = {re.sub(r"(?<!^)(?=[A-Z])", "_", api.name).lower() for api in API.values()}
    homes: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        if path.parent != package / "protocol" / "messages":
            for name in public_definitions(ast.parse(path.read_text())):
                homes.setdefault(name, []).append(path)
    return {
        name: [str(path.relative_to(package)) for path in paths]
        for name, paths in homes.items()
        if name not in apis and len({path.parent for path in paths}) > 1
    }


def test_a_name_has_one_meaning() -> None:
    found = shared_names(PACKAGE)
    surplus = {name: paths for name, paths in found.items() if name not in SHARED_NAMES}
    assert not surplus, f"defined twice: rename one to Kafka's term, or import it: {surplus}"
    assert SHARED_NAMES.keys() <= found.keys(), "take the others off SHARED_NAMES"


def test_a_name_with_two_meanings_is_found(tmp_path: Path) -> None:
    for name, text in (
        ("broker/a.py", "class Outcome: ...\nDone = int\nT = 1\ndef fetch(): ...\nclass _Own: ...\n"),
        ("client/b.py", "class Outcome: ...\nT = 2\ndef fetch(): ...\nclass _Own: ...\nclass Topic: ...\n"),
        ("client/c.py", "Done = str\nclass Topic: ...\n"),
        ("protocol/messages/d.py", "class Topic: ...\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert shared_names(tmp_path) == {"Outcome": ["broker/a.py", "client/b.py"], "Done": ["broker/a.py", "client/c.py"]}
