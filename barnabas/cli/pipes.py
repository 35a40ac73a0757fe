"""Block I/O on files, pipes and terminals without blocking the event loop. Shared descriptors keep their flags: a pipe is reopened for non-blocking writes,
or written in pieces that fit.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

from barnabas.cli.streams import OutputUnwritable

PIECE: Final = 4_096  # PIPE_BUF: a pipe that poll calls writable has room for this number of bytes


def _direct(descriptor: int) -> bool:
    """Whether reads and writes of a descriptor do not wait for another process."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISBLK(mode)


def _ready(descriptor: int, event: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(0))


async def _wait(
    add: Callable[..., Any], remove: Callable[[int], Any], descriptor: int, timeout_s: float | None
) -> bool:
    """Waits until the loop finds a descriptor ready; returns False if `timeout_s` passes first."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, on_ready)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    except TimeoutError:
        return False
    finally:
        remove(descriptor)
    return True


class BlockInput:
    """Reads a descriptor block by block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._direct = _direct(descriptor)

    async def read(self, size: int, timeout_s: float | None = None) -> bytes | None:
        """Returns up to `size` bytes, b"" at the end, or None if nothing arrives within `timeout_s`.

        Raises OSError: the descriptor cannot be read.
        """
        if self._direct:
            await asyncio.sleep(0)
        elif not hasattr(select, "poll"):  # Windows: its event loop cannot wait for a pipe
            return await asyncio.to_thread(os.read, self._descriptor, size)
        elif not _ready(self._descriptor, select.POLLIN):
            loop = asyncio.get_running_loop()
            try:
                if not await _wait(loop.add_reader, loop.remove_reader, self._descriptor, timeout_s):
                    return None
            except PermissionError:  # a device that is always ready, such as /dev/null
                self._direct = True
        return os.read(self._descriptor, size)


class BlockOutput:
    """Writes to a descriptor and counts what was written.

    Attributes:
        written: the number of bytes that completed writes have passed to the file, pipe or terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self.written = 0
        self._descriptor = descriptor
        self._piece = 1 << 30
        self._opened = False
        if not _direct(descriptor) and hasattr(select, "poll"):
            self._open_again()

    def close(self) -> None:
        """Closes what was opened here; the descriptor itself stays open."""
        if self._opened:
            os.close(self._descriptor)

    async def write(self, data: bytes) -> None:
        """Writes all of `data`. If the call is cancelled or fails, `written` tells how much was written.

        Raises OutputUnwritable: the reader has ended, or the disk is full.
        """
        left = memoryview(data)
        while left:
            if self._piece == PIECE and not _ready(self._descriptor, select.POLLOUT):
                await self._writable()
            try:
                count = os.write(self._descriptor, left[: self._piece])
            except BlockingIOError:
                await self._writable()
                continue
            except OSError as error:
                raise OutputUnwritable(error.errno, error.strerror) from None
            self.written += count
            left = left[count:]

    def reader_gone(self) -> bool:
        """Whether the reader of a pipe has ended."""
        if not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))

    @classmethod
    def standard(cls) -> BlockOutput:
        """Standard output; where it is no file but an object in memory, that object."""
        try:
            return cls(sys.stdout.fileno())
        except io.UnsupportedOperation:
            return _MemoryOutput(sys.stdout)

    def _open_again(self) -> None:
        """Opens the pipe or terminal once more, where that can be done: only these writes do not block.

        A descriptor that cannot be written, as that of a closed standard output, is not made writable by it.
        """
        try:
            os.write(self._descriptor, b"")  # fails on a descriptor for reading, and writes nothing
            flags = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
            self._descriptor = os.open(f"/dev/fd/{self._descriptor}", flags)
            self._opened = True
        except OSError:
            self._piece = PIECE

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        await _wait(loop.add_writer, loop.remove_writer, self._descriptor, None)


class _MemoryOutput(BlockOutput):
    def __init__(self, stream: TextIO) -> None:
        self.written = 0
        self._stream = stream

    def close(self) -> None:
        """Closes nothing."""

    async def write(self, data: bytes) -> None:
        """Writes all of `data`."""
        self._stream.flush()
        self._stream.buffer.write(data)
        self.written += len(data)

    def reader_gone(self) -> bool:
        """There is no reader."""
        return False
