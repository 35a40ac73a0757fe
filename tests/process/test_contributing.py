"""CONTRIBUTING.md is enough to add an API: a test follows its steps on a copy of the checkout and calls the API over the wire.

The document names the files. What a contributor would write into each of them is here, so a file that the document does not name
stays as it is, and the API is not complete.
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

import pytest

from tests.support.processes.served import ServedBroker  # not the kit: it runs another checkout

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
API_KEY = 990

MESSAGES = '''"""A made-up family: Greet 0."""

from __future__ import annotations

from barnabas.protocol.schema import Message, field, message
from barnabas.protocol.wire import Int16, String


@message(api_key=990, versions=(0, 0))
class GreetRequest(Message):
    """Asks for a greeting."""

    name: str = field(String)


@message(api_key=990, versions=(0, 0))
class GreetResponse(Message):
    """The greeting."""

    error_code: int = field(Int16, default=0)
    greeting: str = field(String, default="")
'''

HANDLERS = '''"""Handles Greet, version 0: a made-up API that greets by name. An empty name gets INVALID_REQUEST."""

from __future__ import annotations

from typing import Final, Protocol

from barnabas.broker.api.call import Call, Table
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.greetings import GreetRequest, GreetResponse


class Needs(Protocol):
    """What this handler works on."""

    node_id: int


def greet(needs: Needs, call: Call[GreetRequest]) -> GreetResponse:
    """Greets."""
    if not call.request.name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a name is needed")
    return GreetResponse(greeting=f"{call.request.name}, this is node {needs.node_id}")


def refuse_greet(call: Call[GreetRequest], error: BrokerError) -> GreetResponse:
    """The error of the request."""
    return GreetResponse(error_code=error.code)


HANDLERS: Final[Table] = {GreetRequest: (greet, refuse_greet)}
'''

HANDLER_TEST = '''"""Greet, on a stand-in of what it needs."""

from types import SimpleNamespace

from barnabas.broker.handlers import greetings
from barnabas.protocol.messages.greetings import GreetRequest
from tests.support.broker.calls import call_of


def test_it_greets() -> None:
    answer = greetings.greet(SimpleNamespace(node_id=7), call_of(GreetRequest(name="Olga")))
    assert answer.greeting == "Olga, this is node 7"
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


def extend_all_needs(checkout: Path) -> None:
    insert("barnabas/broker/handlers/all_needs.py", r"^    groups,$", "    greetings,\n")(checkout)
    insert("barnabas/broker/handlers/all_needs.py", r"^    groups\.Needs,$", "    greetings.Needs,\n")(checkout)


def make_docs(checkout: Path) -> None:
    run(checkout, "docs/generate.py").check_returncode()


# What a contributor does for each file or command that the document names.
ACTIONS: dict[str, Callable[[Path], None]] = {
    "barnabas/protocol/messages/<family>.py": write("barnabas/protocol/messages/greetings.py", MESSAGES),
    "barnabas/protocol/registry.py": insert(
        "barnabas/protocol/registry.py", r"^    \)\n\}", '        Api(990, "Greet", "greetings", (0, 0), None),\n'
    ),
    "barnabas/broker/handlers/<family>.py": write("barnabas/broker/handlers/greetings.py", HANDLERS),
    "barnabas/broker/handlers/all_needs.py": extend_all_needs,
    "barnabas/broker/authorization/api_operations.py": insert(
        "barnabas/broker/authorization/api_operations.py", r"^    0: \($", "    990: (),\n"
    ),
    "tests/unit/broker/handlers/": write("tests/unit/broker/handlers/test_greetings.py", HANDLER_TEST),
    "make docs": make_docs,
    "CHANGELOG.md": insert("CHANGELOG.md", r"^- ", "- The API Greet.\n"),
}

# Whether the API is complete, as the copy's own code and tests see it. Prints what is missing.
CHECK = """
from barnabas.broker.handlers import all_needs
from barnabas.broker.api.router import Router
from barnabas.broker.authorization.api_operations import API_PERMISSIONS
from barnabas.errors import BarnabasError
if 990 not in API_PERMISSIONS:
    print("its permissions are not declared")
try:
    Router(object()).route(990, 0)
    if not any(each.__module__.endswith(".greetings") for each in all_needs.AllNeeds.__mro__):
        print("all_needs does not name the family")
except (BarnabasError, ImportError) as error:
    print(error)
"""


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python in the copy, on the copy."""
    environment = {"PYTHONPATH": str(checkout), "PATH": ""}
    return subprocess.run([sys.executable, *command], cwd=checkout, env=environment, capture_output=True, text=True)


def steps() -> str:
    """The section "I want to add an API" of the document."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.partition("## I want to add an API\n")[2].partition("\n## ")[0]


def follow(text: str, checkout: Path) -> list[str]:
    """Does what the text says, in its order; returns the files and commands that it names and that have an action."""
    named = [name for name in re.findall(r"`([^`]+)`", text) if name in ACTIONS]
    for name in dict.fromkeys(named):
        ACTIONS[name](checkout)
    return named


def missing(checkout: Path) -> Iterator[str]:
    """What the API lacks in this copy."""
    if not (checkout / "tests/unit/broker/handlers/test_greetings.py").exists():
        yield "it has no test"
    if "The API Greet" not in (checkout / "CHANGELOG.md").read_text():
        yield "CHANGELOG.md does not name it"
    if "| 990 | Greet |" not in (checkout / "docs/coverage.md").read_text():
        yield "docs/coverage.md does not name it"
    check = run(checkout, "-c", CHECK)
    if check.stdout or check.stderr:
        yield check.stdout or check.stderr
    if run(checkout, "docs/generate.py", "--check").returncode:
        yield "the drawn documents are stale"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the steps touch and what they run."""
    copy = tmp_path / "checkout"
    for name in ("barnabas", "docs", "tests"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture
def served(checkout: Path, tmp_path: Path) -> Iterator[ServedBroker]:
    """A node of the copy. It is not started."""
    inside = ("env", f"--chdir={checkout}", f"PYTHONPATH={checkout}")
    broker = ServedBroker(tmp_path / "data", inside=inside)
    yield broker
    broker.kill()


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


def test_the_document_is_enough_to_add_an_api(checkout: Path, served: ServedBroker) -> None:
    named = follow(steps(), checkout)
    assert set(named) == ACTIONS.keys(), "the document does not name all that an API needs"
    assert list(missing(checkout)) == []
    tests = ["tests/unit/broker/api/test_router.py", "tests/unit/broker/handlers/test_greetings.py"]
    tested = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert tested.returncode == 0, tested.stdout
    served.start()
    assert greet(served, "Frieda") == (0, "Frieda, this is node 1")
    assert greet(served, "") == (42, "")
