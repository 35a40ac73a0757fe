"""What is left when the process of a test ends: no broker process and no directory, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.runtime.cluster_directory import _has_nodes
from barnabas.testing import Broker, process_backend
from tests.support.elsewhere import wait_until
from tests.support.processes.leftovers import SECONDS_MAX, wait_until_gone

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, signal, sys, time
from barnabas.testing import Cluster
kafka = Cluster(2, mode="process").start()
kafka.pause(2)
print(json.dumps([each.pid for each in kafka.brokers]), flush=True)
end = sys.argv[1]
if end == "return":
    sys.exit(0)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _sigint() -> Iterator[None]:
    """Programs that a test starts obey SIGINT, also where this run was started in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of the programs that a test starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.parametrize("end", ["return", "SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_is_left(temporary: Path, end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # its own session, as a terminal or a CI job has
    ) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 2
        if end.startswith("SIG"):  # else it may have ended already
            assert len(list(temporary.iterdir())) == 1
            parent.send_signal(getattr(signal, end))
        parent.wait(SECONDS_MAX)
    assert wait_until_gone(pids, temporary) == ([], [])


def test_a_pause_returns_when_the_process_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends orphaned processes only if they have stopped, and SIGSTOP takes effect some time after it was sent."""
    asked: list[int] = []

    def is_stopped(pid: int) -> bool:
        asked.append(pid)
        return len(asked) == 3

    monkeypatch.setattr(process_backend, "_is_stopped", is_stopped)
    with Broker(mode="process") as kafka:
        pid = kafka.brokers[0].pid
        kafka.pause()
        assert asked == [pid] * 3
        kafka.resume()

        monkeypatch.undo()
        for _ in range(5):
            kafka.pause()
            assert pid is not None
            assert os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is not None
            kafka.resume()


def test_a_start_removes_what_a_machine_wide_kill_left_and_keeps_what_is_in_use(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    command = [sys.executable, "-c", SCRIPT, "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        for pid in (*pids, parent.pid):
            os.kill(pid, signal.SIGKILL)
    [left] = temporary.iterdir()  # SIGKILL of all processes at once leaves the directory
    wait_until(lambda: not _has_nodes(left), "the killed brokers have ended")
    with Broker(mode="process") as kafka:
        assert not left.exists()
        [used] = temporary.iterdir()
        with Broker(mode="process"):
            assert used in temporary.iterdir()
        assert kafka.topics() == []
    assert list(temporary.iterdir()) == []


def test_an_interrupted_pytest_run_leaves_nothing(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "test_waits.py").write_text(
        """
import json, time
import pytest

@pytest.mark.kafka(brokers=2, isolation="process")
def test_waits(kafka, kafka_proc, kafka_broker):
    kafka.pause(1)
    with open("pids", "w") as file:
        file.write(json.dumps([each.pid for each in (*kafka.brokers, *kafka_proc.brokers)]) + "\\n")
    time.sleep(600)
"""
    )
    command = [sys.executable, "-m", "pytest", "-p", "barnabas.testing.plugin", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        pids: list[int] = []
        deadline = time.monotonic() + SECONDS_MAX
        while not pids and time.monotonic() < deadline:
            time.sleep(0.02)
            told = tmp_path / "pids"
            if told.exists() and told.read_text().endswith("\n"):
                pids = json.loads(told.read_text())
        run.send_signal(signal.SIGINT)
        assert run.wait(SECONDS_MAX) == pytest.ExitCode.INTERRUPTED
    assert len(pids) == 3
    assert wait_until_gone(pids, temporary) == ([], [])
