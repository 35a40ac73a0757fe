"""CONTRIBUTING.md is enough to add an API, a config key, a metric and a command: a test follows its steps on a copy of the checkout.

The document names the files. What a contributor would write into each of them is here, so a file that the document does not name
stays as it is, and the change is not complete.
"""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: it runs another checkout

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
API_KEY = 990
COPIED = (
    "barnabas",
    "docs",
    "tests/support",
    "tests/unit/broker",
    "tests/unit/__init__.py",
    "tests/__init__.py",
    "tests/conftest.py",
    "tests/test_tidy.py",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
)

MESSAGES = '''

class GreetRequest(Message, api_key=990, versions=(0, 0)):
    """Asks for a greeting."""

    name: str = field(String)


class GreetResponse(Message, api_key=990, versions=(0, 0)):
    """The greeting."""

    error_code: int = field(Int16, default=0)
    greeting: str = field(String, default="")
'''

HANDLERS = '''from barnabas.protocol.messages.telemetry import GreetRequest, GreetResponse


def greet(needs: Needs, call: Call[GreetRequest]) -> GreetResponse:
    """Greets."""
    if not call.request.name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a name is needed")
    return GreetResponse(greeting=f"Hello, {call.request.name}")


def refuse_greet(call: Call[GreetRequest], error: BrokerError) -> GreetResponse:
    """The error of the request."""
    return GreetResponse(error_code=error.code)


'''

HANDLER_TEST = '''"""Greet, without a node."""

from types import SimpleNamespace

from barnabas.broker.handlers import telemetry
from barnabas.protocol.messages.telemetry import GreetRequest
from tests.support.broker.calls import call_of


def test_it_greets() -> None:
    answer = telemetry.greet(SimpleNamespace(), call_of(GreetRequest(name="Olga")))
    assert answer.greeting == "Hello, Olga"
'''

COMMAND = '''"""`barnabas greet`: a made-up command."""


def greet(name: str) -> int:
    """Greets."""
    print(f"Hello, {name}")
    return 0
'''


def write(name: str, text: str) -> Callable[[Path], None]:
    def act(checkout: Path) -> None:
        (checkout / name).write_text(text)

    return act


def insert(name: str, place: str, text: str) -> Callable[[Path], None]:
    """Writes `text` in front of the first match of the expression `place`."""

    def act(checkout: Path) -> None:
        path = checkout / name
        before = path.read_text()
        after = re.sub(place, lambda match: text + match.group(), before, count=1, flags=re.MULTILINE)
        assert after != before, f"{name} has no place for {text!r}"
        path.write_text(after)

    return act


def append(name: str, text: str) -> Callable[[Path], None]:
    def act(checkout: Path) -> None:
        (checkout / name).write_text((checkout / name).read_text() + text)

    return act


def every(*actions: Callable[[Path], None]) -> Callable[[Path], None]:
    def act(checkout: Path) -> None:
        for action in actions:
            action(checkout)

    return act


REGISTRY = "barnabas/protocol/registry.py"
TELEMETRY = "barnabas/broker/handlers/telemetry.py"
SERIES = "barnabas/broker/metrics/server_series.py"
COLLECT = r"^        servers = \(node\.server, node\.controller_server\)$"
SHOWN_KEY = (
    '        yield GaugeMetricFamily("barnabas_greeting_characters", "Of greeting.text.", '
    'len(node.config.get_str("greeting.text") or ""))\n'
)

MAKE_DOCS = "make docs"  # the test runs it once, after the steps of all sections
# What a contributor does for each file or command that a section of the document names.
SECTIONS: dict[str, dict[str, Callable[[Path], None]]] = {
    "an API": {
        "barnabas/protocol/messages/<family>.py": append("barnabas/protocol/messages/telemetry.py", MESSAGES),
        REGISTRY: every(
            insert(REGISTRY, r"^    \)\n\}", '        Api(990, "Greet", "telemetry", (0, 0), None),\n'),
            insert(REGISTRY, r"^    0: \($", "    990: (),\n"),
        ),
        "barnabas/broker/handlers/<family>.py": every(
            insert(TELEMETRY, r"^HANDLERS: Final", HANDLERS),
            insert(TELEMETRY, r"(?<=^HANDLERS: Final\[Table\] = \{\n)", "    GreetRequest: (greet, refuse_greet),\n"),
        ),
        "tests/unit/broker/handlers/": write("tests/unit/broker/handlers/test_greetings.py", HANDLER_TEST),
        MAKE_DOCS: every(),
        "CHANGELOG.md": insert("CHANGELOG.md", r"^- ", "- The API Greet.\n"),
    },
    "a config key": {
        "barnabas/broker/config/table.py": insert(
            "barnabas/broker/config/table.py",
            r'^    "node\.id"',
            '    "greeting.text": string("Hello", "Barnabas only: how nodes greet."),\n',
        ),
        'config.get_int("…")': insert(SERIES, COLLECT, SHOWN_KEY),
        MAKE_DOCS: every(),
    },
    "a metric": {
        "barnabas/broker/metrics/": insert(
            SERIES, COLLECT, '        yield GaugeMetricFamily("barnabas_greeting", "Always 7.", 7)\n'
        ),
    },
    "a CLI command": {
        "barnabas/cli/<command>.py": write("barnabas/cli/greet.py", COMMAND),
        "barnabas/cli/app.py": insert(
            "barnabas/cli/app.py", r'^        \("storage", ', '        ("greet", "greet:greet", "Greet.", ()),\n'
        ),
        MAKE_DOCS: every(),
    },
}
FILES_MAX = 3  # of the package, for one change


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python in the copy, on the copy."""
    environment = {"PYTHONPATH": str(checkout), "PATH": ""}
    return subprocess.run([sys.executable, *command], cwd=checkout, env=environment, capture_output=True, text=True)


def steps(what: str) -> str:
    """A section of the document."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.partition(f"## I want to add {what}\n")[2].partition("\n## ")[0]


def follow(what: str, checkout: Path) -> set[str]:
    """Does what the section says, in its order; returns the files and commands that it names and that have an action."""
    actions = SECTIONS[what]
    named = dict.fromkeys(name for name in re.findall(r"`([^`]+)`", steps(what)) if name in actions)
    for name in named:
        actions[name](checkout)
    return set(named)


def files_of_the_package(checkout: Path) -> dict[str, bytes]:
    """Names and contents."""
    package = checkout / "barnabas"
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(package)): path.read_bytes() for path in files}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the steps touch and what they run, with its bytecode."""
    copy = tmp_path / "checkout"
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name)
        else:
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture
def served(checkout: Path, tmp_path: Path) -> Iterator[Callable[..., ServedBroker]]:
    """Starts nodes of the copy."""
    started: list[ServedBroker] = []

    def serve(*settings: str) -> ServedBroker:
        inside = ("env", f"--chdir={checkout}", f"PYTHONPATH={checkout}")
        started.append(ServedBroker(tmp_path / "data", *settings, inside=inside))
        started[-1].start()
        return started[-1]

    yield serve
    for each in started:
        each.kill()


def greet(broker: ServedBroker, name: str) -> tuple[int, str]:
    """Calls the API by its bytes; returns error code and greeting."""
    body = struct.pack(">hhih4s", API_KEY, 0, 7, 4, b"test") + struct.pack(">h", len(name)) + name.encode()
    with socket.create_connection((broker.host, broker.port), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        correlation, error, length = struct.unpack(">ihh", (rest := answer.read(size))[:8])
    assert correlation == 7
    assert len(rest) == 8 + length
    return error, rest[8:].decode()


def test_the_document_is_enough_for_all_changes(checkout: Path, served: Callable[..., ServedBroker]) -> None:
    for what in SECTIONS:
        before = files_of_the_package(checkout)
        assert follow(what, checkout) == SECTIONS[what].keys(), f"the document does not name all that {what} needs"
        changed = {name for name, content in files_of_the_package(checkout).items() if before.get(name) != content}
        assert 1 <= len(changed) <= FILES_MAX, (what, changed)
    run(checkout, "docs/generate.py").check_returncode()
    drawn = (checkout / "docs/coverage.md").read_text(), (checkout / "docs/configuration.md").read_text()
    assert "| 990 | Greet |" in drawn[0]
    assert "| `greeting.text` |" in drawn[1]
    tests = [
        "tests/unit/broker/api/test_router.py",
        "tests/unit/broker/handlers/test_greetings.py",
        "tests/unit/broker/controller/test_authorization.py",
        "tests/test_tidy.py::test_every_setting_is_read_or_marked_as_without_effect",
    ]
    tested = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert tested.returncode == 0, tested.stdout
    assert run(checkout, "-m", "barnabas.cli.main", "greet", "Olga").stdout == "Hello, Olga\n"
    (port,) = free_ports(1)
    broker = served(f"metrics.listen=127.0.0.1:{port}", "greeting.text=Salut")
    assert greet(broker, "Frieda") == (0, "Hello, Frieda")
    assert greet(broker, "") == (42, "")
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        scraped = answer.read().decode()
    assert "barnabas_greeting 7.0\n" in scraped
    assert "barnabas_greeting_characters 5.0\n" in scraped
