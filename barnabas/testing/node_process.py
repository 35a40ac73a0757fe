"""Main program of a node's process: one line of settings, then JSON commands. When the socket ends, the starting process is gone: the node ends at
once and removes the cluster's directory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from typing import Any

from barnabas.errors import BarnabasError
from barnabas.runtime.json_lines import JsonLines
from barnabas.runtime.loop import run
from barnabas.runtime.scope import Scope
from barnabas.testing.node_commands import COMMANDS
from barnabas.testing.node_host import NodeHost


class _Program:
    """One node and the link to the process that started it."""

    def __init__(self) -> None:
        self._link: JsonLines | None = None
        self._host: NodeHost | None = None
        self._cluster_directory = ""
        self._scope = Scope("commands")
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self, link: socket.socket) -> int:
        """Serves until a stop, or until the link ends; returns the exit code."""
        self._link = await JsonLines.open(link, self._on_value, self._on_orphaned)
        code = await self._ended
        self._link.close()
        await asyncio.sleep(0)
        return code

    def _on_value(self, value: dict[str, Any]) -> None:
        if self._host is None and "settings" in value:
            self._scope.start(self._start(value), name="start")
        else:
            self._scope.start(self._answer(value), name=f"command {value['name']}")

    async def _start(self, given: dict[str, Any]) -> None:
        from barnabas.runtime import descriptors
        from barnabas.runtime.files import FileDisk

        self._cluster_directory = given["cluster_directory"]
        settings = given["settings"]
        descriptors.raise_limit()
        folders = settings["log.dirs"].split(",")
        disks = [FileDisk(each, open_files_max=descriptors.open_files_max(len(folders))) for each in folders]
        try:
            self._host = NodeHost(
                settings, disks, COMMANDS, emit=self._emit, on_fatal=self._on_fatal, on_kill=self._on_kill
            )
            await self._host.start(given["commands"])
        except (BarnabasError, OSError) as error:
            self._send({"error": str(error)})
            self._end(1)
        else:
            self._send({"ready": True})

    async def _answer(self, command: dict[str, Any]) -> None:
        name, value = command["name"], None
        try:
            if self._host is None:
                raise RuntimeError("the node was not started")
            if name == "stop":
                await self._host.stop()
            else:
                value = await self._host.command(name, command["arguments"])
        except Exception as error:  # the caller gets it
            self._send({"id": command["id"], "error": f"{type(error).__name__}: {error}"})
        else:
            self._send({"id": command["id"], "value": value})
        if name == "stop":
            self._end(0)

    def _on_orphaned(self) -> None:
        """The starting process has ended."""
        if self._ended.done():
            return
        if self._host is not None:
            self._host.kill()
        if self._cluster_directory:
            shutil.rmtree(self._cluster_directory, ignore_errors=True)
        self._end(1)

    def _emit(self, name: str, value: Any) -> None:
        self._send({"event": name, "value": value})

    def _on_fatal(self, error: BaseException) -> None:
        self._send({"failed": str(error)})

    def _on_kill(self, lose: str) -> None:
        """A call of the disk has met a fault that ends this process."""
        if lose == "page_cache" and self._host is not None:
            self._host.lose_page_cache()
        self._send({"killed": lose})
        os.kill(os.getpid(), signal.SIGKILL)

    def _send(self, value: Any) -> None:
        if self._link is not None:
            self._link.send(value)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


async def _serve(link: socket.socket) -> int:
    return await _Program().run(link)


def main(link_fd: int) -> None:
    """Runs the node that the first line of the link describes. `link_fd`: descriptor of a socket that is connected to the starting process."""
    import logging

    from barnabas.runtime.log_lines import TextLines
    from barnabas.runtime.memory import freeze_survivors, keep_freed_memory

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines())
    logging.basicConfig(level="INFO", handlers=[handler])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the starting process, which ends this one
    keep_freed_memory()
    freeze_survivors()
    code = run(_serve(socket.socket(fileno=link_fd)))
    sys.stderr.flush()
    os._exit(code)  # no thread or exit handler delays the end
