"""`barnabas up` on a terminal, and how it ends: killed, twice Ctrl-C, a closed terminal, a second start, a wrong directory."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.cli import barnabas, called
from tests.support.processes.up import COMMAND, SECONDS_MAX, Up

pytestmark = pytest.mark.process
ORPHANS_END_S = 2.0
NOISE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def up(data: Path) -> Iterator[Up]:
    started = Up(data, "--brokers", "2", "--port", "0")
    yield started
    started.kill()


class Terminal:
    """`barnabas up` on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*COMMAND, "up", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(slave)

    def read_until(self, wanted: str) -> str:
        deadline = time.monotonic() + SECONDS_MAX
        while wanted not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.master], [], [], 1.0)[0]:
                try:
                    self.shown += NOISE.sub("", self._decoder.decode(os.read(self.master, 65_536)))
                except OSError:
                    assert wanted in self.shown, self.shown
        return self.shown

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_terminal_gets_a_banner_and_ctrl_c_removes_temporary_data(tmp_path: Path) -> None:
    terminal = Terminal("--brokers", "1", "--port", "0")
    try:
        shown = terminal.read_until("Ctrl-C stops the cluster.")
        bootstrap = re.search(r"bootstrap +(127\.0\.0\.1:\d+)", shown)
        directory = re.search(r"data +(/\S+)", shown)
        assert bootstrap is not None, shown
        assert directory is not None, shown
        assert "starting 1 broker …" in shown
        assert "Kafka is ready: 1 broker " in shown
        assert "temporary: removed when this command ends" in shown
        assert f"barnabas consume orders --from-beginning -b {bootstrap[1]}" in shown
        assert "ready bootstrap=" not in shown
        created = called("topic", "create", "orders", "-b", bootstrap[1])
        assert created.returncode == 0, created.stderr
        assert Path(directory[1]).is_dir()
        os.write(terminal.master, b"\x03")  # Ctrl-C
        terminal.read_until("stopping; Ctrl-C again kills the nodes at once")
        assert terminal.process.wait(SECONDS_MAX) == 0
        assert not Path(directory[1]).exists()
    finally:
        terminal.end()


def test_the_next_start_removes_temporary_data_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while its nodes run, and nothing else."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    other = tmp_path / "barnabas-up-of-another-tool"
    other.mkdir()
    first = Terminal("--brokers", "1", "--port", "0")
    try:
        first.read_until("Ctrl-C stops the cluster.")
        (left,) = set(tmp_path.glob("barnabas-up-*")) - {other}
    finally:
        first.end()  # SIGKILL
    assert left.is_dir()
    deadline = time.monotonic() + SECONDS_MAX
    while left.exists():
        assert time.monotonic() < deadline, "the node has ended, and the directory is still there"
        again = Terminal("--brokers", "1", "--port", "0")
        try:
            again.read_until("Ctrl-C stops the cluster.")
        finally:
            again.end()
    assert other.is_dir()


def test_a_terminal_that_closes_stops_the_nodes(data: Path) -> None:
    terminal = Terminal("--brokers", "1", "--port", "0", "--data", str(data))
    terminal.read_until("Ctrl-C stops the cluster.")
    assert "kept for the next time" in terminal.shown
    os.close(terminal.master)
    assert terminal.process.wait(SECONDS_MAX) == 0
    assert (data / "node-1" / ".kafka_cleanshutdown").exists()


def test_nodes_end_when_up_is_killed(up: Up) -> None:
    pids = list(up.nodes().values())
    assert len(pids) == 2
    up.process.kill()
    up.process.wait()
    assert wait_until(lambda: all(is_gone(pid) for pid in pids), ORPHANS_END_S), up.nodes()
    logs = [(up.data / f"node-{number}.log").read_text() for number in (1, 2)]
    assert all("Standard input has ended, the node stops" in log for log in logs)
    assert any("Node has stopped cleanly" in log for log in logs)
    ports = (up.data / "quorum-ports").read_text()
    again = Up(up.data, "--brokers", "2", "--port", "0")
    assert again.end() == 0
    assert (up.data / "quorum-ports").read_text() == ports


def test_a_stopped_node_does_not_delay_a_second_ctrl_c(up: Up) -> None:
    pids = up.nodes()
    os.kill(pids[2], signal.SIGSTOP)  # it cannot stop
    up.process.send_signal(signal.SIGINT)
    assert wait_until(lambda: up.process.poll() is not None, 0.3) is False
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(60) == 130
    assert all(is_gone(pid) for pid in pids.values())


def test_a_second_start_on_the_same_directory_names_the_first(up: Up) -> None:
    second = called("up", "--brokers", "2", "--port", "0", "--data", str(up.data))
    assert (second.returncode, second.stdout, second.stderr.count("\n")) == (1, "", 1)
    assert f"locked by another process: process {up.process.pid} (" in second.stderr
    assert "barnabas.cli.main up --data" in second.stderr
    alone = barnabas("serve", "--data", str(up.data / "node-1"), "--listen", "127.0.0.1:0", "--log-level", "warning")
    assert (alone.returncode, alone.stderr.count("\n")) == (1, 1), alone.stderr
    assert f"locked by another process: process {up.nodes()[1]} (" in alone.stderr


def test_a_port_in_use_names_its_process(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = called("up", "--port", str(port), "--brokers", "1", "--data", str(data))
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert f"port {port} of node 1 is in use by process {os.getpid()} (" in refused.stderr
        served = barnabas("serve", "--data", str(data / "x"), "--listen", f"127.0.0.1:{port}", "--log-level", "warning")
        assert (served.returncode, served.stderr.count("\n")) == (1, 1), served.stderr
        assert f"process {os.getpid()} (" in served.stderr
        assert f"listens on port {port}; stop it" in served.stderr


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for wrong in (file, file / "below", Path("/proc/nowhere")):
        refused = called("up", "--brokers", "1", "--port", "0", "--data", str(wrong))
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), refused.stderr
        assert str(wrong) in refused.stderr
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        refused = called("up", "--brokers", "1", "--port", "0", "--data", str(tmp_path))
        assert "name a directory where this user may write" in refused.stderr


def test_a_full_volume(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("cannot mount a small volume")
    try:
        (small / "filler").write_bytes(bytes(64 * 1024))
        refused = called("up", "--brokers", "1", "--port", "0", "--data", str(small / "cluster"))
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), refused.stderr
        assert "volume" in refused.stderr
        assert "space" in refused.stderr
    finally:
        subprocess.run(["umount", str(small)], check=True)
