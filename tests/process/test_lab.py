"""`barnabas up --lab`: a cluster whose faults, kills and leaders are set over HTTP, by a program in any language."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.protocol.messages.metadata import MetadataRequest
from tests.support.http import call
from tests.support.oracle.wire import Wire
from tests.support.processes.cli import called

pytestmark = pytest.mark.process

UP = [sys.executable, "-m", "barnabas", "up", "--port", "0", "--brokers"]
DEADLINE_S = 60.0


@contextmanager
def lab(brokers: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The running command, the bootstrap servers and the URL."""
    command = [*UP, str(brokers), "--lab", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, bootstrap, url = process.stdout.readline().split()
            assert ready == "ready"
            yield process, bootstrap.removeprefix("bootstrap="), url.removeprefix("lab=")
        finally:
            process.kill()


def test_a_fault_and_a_kill_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with lab(2, "--set", "num.partitions=3") as (process, bootstrap, url):
        told = call("GET", f"{url}/v1/brokers")[1]
        assert (told["mode"], told["bootstrap_servers"], len(told["brokers"])) == ("process", bootstrap, 2)
        fault = call("POST", f"{url}/v1/faults", {"api": "Metadata", "client": "fetch-1", "disconnect": "replicated"})[
            1
        ]
        with Wire(bootstrap.partition(",")[0], client_id="fetch-1") as peer, pytest.raises(ConnectionResetError):
            peer.call(MetadataRequest(topics=[]), 9)
        assert call("GET", f"{url}/v1/faults/{fault['id']}?hits=1")[1]["hits"] == 1
        assert call("POST", f"{url}/v1/brokers/2/kill") == (200, {"id": 2, "state": "down"})
        assert call("POST", f"{url}/v1/brokers/2/restart") == (200, {"id": 2, "state": "running"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--lab", "0.0.0.0:8474"), "it listens on this machine only: write 127.0.0.1:8474"),
        (("--lab", "192.168.1.5:0"), "it listens on this machine only: write 127.0.0.1:0"),
        (("--lab", ":8474"), "it listens on this machine only"),
        (("--lab", "8474"), "write HOST:PORT"),
        (("--lab", "127.0.0.1:x"), "write HOST:PORT"),
        (("--lab", "127.0.0.1:65536"), "write HOST:PORT"),
        (("--lab", "127.0.0.1:0", "--data", "somewhere"), "--lab and --data"),
        (("--lab", "127.0.0.1:0", "--set", "num.partition=3"), "did you mean 'num.partitions'"),
        (("--lab", "127.0.0.1:0", "--set", "node.id=3"), "the kit sets it itself"),
    ],
)
def test_a_wrong_call_is_refused(options: tuple[str, ...], text: str) -> None:
    done = called("up", "--port", "0", "--brokers", "1", *options)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("somewhere").exists()
