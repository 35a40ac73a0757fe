"""What `barnabas serve` says to do when the system refuses something."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import sys

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.cli.node_program import announce, obey_signals, remedy


def test_what_to_do_about_a_directory_that_may_not_be_written() -> None:
    config = BrokerConfig({"log.dirs": "one,two"})
    denied = PermissionError(errno.EACCES, "Permission denied", "two/.lock")
    assert remedy(denied, config).startswith(": the node must read and write in two; change its owner or permissions")
    assert remedy(denied, config).endswith(f"it runs as user id {os.geteuid()}")
    assert remedy(PermissionError(errno.EACCES, "cannot bind 127.0.0.1:80: permission denied"), config) == ""


class Unread(io.StringIO):
    """An output whose reader has ended."""

    def flush(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_node_survives_an_output_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A script that has read the ready line has ended, or a service manager has closed standard output."""
    dropped: list[None] = []
    monkeypatch.setattr("barnabas.cli.node_program.drop_output", lambda: dropped.append(None))
    monkeypatch.setattr(sys, "stdout", Unread())
    announce("ready node=1")
    monkeypatch.undo()
    assert len(dropped) == 1
    assert "Ready line cannot be written to standard output: error=Broken pipe" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_node_without_tls_stops_cleanly_on_a_signal(number: signal.Signals) -> None:
    """SIGHUP would end it without a clean stop, when its terminal closes."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    obey_signals(loop, stopped.set, None)
    try:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60):
            await stopped.wait()
    finally:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(each)
