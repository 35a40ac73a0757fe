"""`--metrics-listen` of `serve` and `up`: what is served where, and wrong addresses."""

from __future__ import annotations

import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.broker.scrapes import Scrape
from tests.support.processes.cli import barnabas, called
from tests.support.processes.up import Up

pytestmark = pytest.mark.process


def fetched(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def await_ready(address: str) -> None:
    """Waits until the node is ready. It is not for ten seconds after a stall, which a busy machine may cause."""
    deadline = time.monotonic() + 60
    while True:
        try:
            assert fetched(address, "/readyz") == "ok\n"
            return
        except urllib.error.HTTPError as error:
            reason = error.read().decode()
        assert "stalled" in reason, reason
        assert time.monotonic() < deadline, reason
        time.sleep(0.2)


def test_every_node_of_up_serves_its_metrics(tmp_path: Path) -> None:
    up = Up(tmp_path / "cluster", "--port", "0", "--metrics-listen", "127.0.0.1:0")
    try:
        assert len(up.metrics) == 3
        for each in up.metrics:
            await_ready(each)
            scraped = Scrape(fetched(each, "/metrics"))
            assert scraped.value("process_open_fds") > 10
            assert scraped.value("process_resident_memory_bytes") > 10_000_000
            assert scraped.value("process_start_time_seconds") > 1_700_000_000
        assert up.end(signal.SIGTERM) == 0
    finally:
        up.kill()


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize("address", ["9404", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "http://a:1", "::1:9404"])
def test_a_wrong_address_is_refused(tmp_path: Path, command: str, address: str) -> None:
    ran = called(command, "--data", str(tmp_path / "data"), "--metrics-listen", address)
    assert ran.returncode == 2
    assert ran.stderr == (
        f"barnabas {command}: --metrics-listen {address}: write HOST:PORT, e.g. 127.0.0.1:9404; port 0 takes a free one\n"
    )
    assert not (tmp_path / "data").exists()


def test_an_address_in_use_ends_serve(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = barnabas("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--metrics-listen", address)
    assert ran.returncode == 1
    said = (
        f"metrics.listen: cannot bind {address}: address already in use; name another address, or port 0 for a free one"
    )
    assert ran.stderr.splitlines()[-1] == f"barnabas serve: {said}"
