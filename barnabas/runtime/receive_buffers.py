"""Receive buffer of TLS connections: one per thread, as a loop handles each read before the next."""

from __future__ import annotations

import sys
import threading
from typing import Final

READ_BYTES: Final = 256 * 1024
_SHARES_BUFFER: Final = sys.platform != "win32"  # Windows' loop reads into several buffers at once


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_shared: Final = _OfThread()


def receive_buffer() -> memoryview:
    return _shared.view if _SHARES_BUFFER else memoryview(bytearray(READ_BYTES))
