"""No process of the package imports files of the working directory. The demos are tested so with their own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.cli import ForeignModules

pytestmark = pytest.mark.process

COMMAND = "import barnabas.cli.main as command; command.main()"
KIT = """
from barnabas.testing import Cluster
if __name__ == "__main__":
    with Cluster(1, mode="process", internal_topics=False):
        pass
"""


@pytest.fixture
def foreign(tmp_path: Path) -> ForeignModules:
    return ForeignModules(tmp_path / "cwd")


def started(foreign: ForeignModules, program: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a program that itself does not look into its working directory."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=foreign.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments", [("up", "--brokers", "1", "--port", "0"), ("serve", "--data", "data", "--listen", "127.0.0.1:0")]
)
def test_a_broker(foreign: ForeignModules, arguments: tuple[str, ...]) -> None:
    process = started(foreign, COMMAND, *arguments)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("ready "):
            break
    process.terminate()
    process.communicate(timeout=60)
    assert said[-1].startswith("ready "), said
    assert not foreign.imported()


@pytest.mark.parametrize(
    "program", [pytest.param((COMMAND, "completion", "bash"), id="completion"), pytest.param((KIT,), id="kit")]
)
def test_a_program(foreign: ForeignModules, program: tuple[str, ...]) -> None:
    process = started(foreign, *program)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert not foreign.imported()
