"""Long reads of a log file: their bytes are loaded in slices, before the read that returns them."""

from __future__ import annotations

from typing import Final

from barnabas.ports import Buffer, File
from barnabas.protocol.framing import anonymous_memory
from barnabas.work import SLICE, Steps

READ_BYTES_MAX: Final = 8 * 1024 * 1024  # read in one turn of the loop: 3 to 10 ms
_PIECE_BYTES: Final = 1024 * 1024  # in one slice: a millisecond


class LongRead(Exception):
    """A read takes more than one turn of the loop: run `ahead.load`, then repeat the read with `ahead`."""

    def __init__(self, ahead: ReadAhead) -> None:
        super().__init__("load it first")
        self.ahead = ahead


class ReadAhead:
    """Bytes of one long read.

    Args:
        version: of the file's contents below its end.
    """

    __slots__ = ("_bytes", "_error", "_file", "_position", "_size", "_version")

    def __init__(self, file: File | None = None, size: int = 0, position: int = 0, version: int = 0) -> None:
        self._file = file
        self._size = size
        self._position = position
        self._version = version
        self._bytes = memoryview(b"")
        self._error: OSError | None = None

    def load(self) -> Steps[None]:
        """Reads the bytes in slices. `read` raises the error of the disk."""
        file = self._file
        if file is None:
            return
        loaded, end = memoryview(anonymous_memory(self._size)), 0
        try:
            while end < self._size and (piece := file.pread(min(_PIECE_BYTES, self._size - end), self._position + end)):
                loaded[end : end + len(piece)] = piece
                end += len(piece)
                yield SLICE
        except OSError as error:
            self._error = error
        self._bytes = loaded[:end]

    def read(self, file: File, size: int, position: int, version: int) -> Buffer:
        """Returns at most `size` bytes. Raises LongRead if it has not loaded them, OSError."""
        if (self._file, self._position, self._version) != (file, position, version):
            raise LongRead(ReadAhead(file, size, position, version))
        if self._error is not None:
            raise self._error
        return self._bytes[:size]


NOTHING_AHEAD: Final = ReadAhead()
