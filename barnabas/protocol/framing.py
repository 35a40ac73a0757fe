"""FrameReader: splits a byte stream into frames, without I/O.
Buffers are replaced, never resized or rewritten: a frame's view stays valid but keeps its buffer in memory.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.limits import FRAME_BYTES_MAX
from barnabas.ports import Buffer

_LENGTH = struct.Struct(">i")
_LENGTH_AND_API_KEY = struct.Struct(">ih")
_FRAME_BYTES_MIN = 4  # a response is at least its correlation id
_FIRST_BUFFER_BYTES = 16 * 1024  # most connections send little at first, and thousands may begin at once
_TLS_HANDSHAKE = 0x1603  # the first bytes of a TLS client
_HTTP = frozenset(int.from_bytes(each, "big") for each in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"HTTP"))
_BUFFER_BYTES = 64 * 1024  # room for hundreds of small requests, which are views of it
_READ_BYTES_MIN = 8 * 1024  # with less room a new buffer is cheaper than another read
_READ_BYTES_MAX = 256 * 1024  # of one read: between two reads the owner can stop reading
_CUT_BYTES = 8 * 1024  # of a frame above the limit of its API: its header, and the first names in it
CUT = 0x80  # in the first byte of a frame: it is cut off; API keys are not negative
_GROWTH = 4  # the buffer of a larger frame grows to this multiple of the bytes that have arrived
_GROWN_BYTES_MAX = 1024 * 1024  # a frame above it gets a mapping, whose pages become memory when bytes arrive
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}  # else Windows


def anonymous_memory(size_bytes: int) -> mmap.mmap:
    """A buffer of zeros: its pages become memory when bytes arrive."""
    return mmap.mmap(-1, size_bytes, **_PRIVATE)


class FrameReader:
    """Splits a byte stream into frames.

    A length is checked before memory is allocated for it. Memory never exceeds four times the received bytes (first
    allocations: 16 KiB, 64 KiB). No call copies more than 256 KiB of a frame.

    Args:
        size_bytes_max: the largest frame, without its length field (`socket.request.max.bytes`).
        limit_of: for requests: the largest frame of an API key, at most `size_bytes_max`. Of a larger frame only the
            first bytes are returned, with CUT in the first one, after all have arrived. Clients have none.
        size_bytes_free: frames up to this size are allowed for every API key, without a call of `limit_of`.
        buffer_bytes: the smallest buffer, until `limit` is called.

    Attributes:
        allocated_bytes: size of the present buffer.
        wanted_bytes: size of the incomplete frame with its length; 0 while it is unknown or not checked.
        allows_empty: SASL tokens without a request header may be empty frames.
    """

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_cut",
        "_end",
        "_limit_of",
        "_read_bytes_min",
        "_size_bytes_free",
        "_size_bytes_max",
        "_start",
        "_unread",
        "_view",
        "allocated_bytes",
        "allows_empty",
        "wanted_bytes",
    )

    def __init__(
        self,
        *,
        size_bytes_max: int = FRAME_BYTES_MAX,
        limit_of: Callable[[int], int] | None = None,
        size_bytes_free: int = 0,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        self.allows_empty = False
        self._buffer_bytes = buffer_bytes
        self._read_bytes_min = min(_READ_BYTES_MIN, buffer_bytes // 4)
        self._size_bytes_max = size_bytes_max
        self._size_bytes_free = size_bytes_free
        self._limit_of = limit_of
        # created by the first read: an idle connection needs no memory
        self._buffer: bytearray | mmap.mmap = bytearray()
        self._view = memoryview(self._buffer)
        self.allocated_bytes = 0
        self._start = 0  # start ≤ end ≤ capacity; bytes between are received and not yet part of a whole frame
        self._end = 0
        self.wanted_bytes = 0
        self._cut = bytearray()  # the beginning of a frame that is dropped as it arrives
        self._unread = 0  # bytes of it that have not arrived

    @property
    def buffered_bytes(self) -> int:
        return self._end - self._start

    @property
    def unread(self) -> memoryview:
        """Bytes of an incomplete or rejected frame; valid until the next read."""
        return self._view[self._start : self._end]

    def limit(self, size_bytes_max: int, size_bytes_free: int, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes_free = size_bytes_free
        self._buffer_bytes, self._read_bytes_min = buffer_bytes, min(_READ_BYTES_MIN, buffer_bytes // 4)

    def release(self) -> None:
        """Frees the buffer of an idle connection, unless it has an incomplete frame."""
        if self._start == self._end:
            self._buffer = bytearray()
            self._view = memoryview(self._buffer)
            self.allocated_bytes = self._start = self._end = 0

    def end(self) -> None:
        self._start, self.wanted_bytes = self._end, 0
        self.release()

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """The buffer for the next read. Then call `received` with the number of bytes."""
        room = self.allocated_bytes - self._end
        if self.wanted_bytes:
            if self._start + self.wanted_bytes > self.allocated_bytes and (self._start or room == 0):
                self._replace()
        elif room < self._read_bytes_min:
            self._replace()
        return self._view[self._end : self._end + _READ_BYTES_MAX]

    def received(self, count: int) -> list[memoryview]:
        """Returns the complete frames, without their lengths. Raises RemoteProtocolError for an illegal length."""
        start = self._start
        end = self._end + count
        if end > self.allocated_bytes:
            raise LocalProtocolError(
                f"{count} bytes received into a buffer with room for {self.allocated_bytes - self._end}"
            )
        self._end = end
        self.wanted_bytes = 0
        buffer = self._buffer
        view = self._view
        frames: list[memoryview] = []
        if self._unread:
            start += self._drop(end - start, frames)
        while end - start >= 4:
            size = _LENGTH.unpack_from(buffer, start)[0]
            if not _FRAME_BYTES_MIN <= size <= self._size_bytes_free and self._is_too_large(size, start):
                if end - start < 4 + _CUT_BYTES:
                    break
                self._cut = bytearray(view[start + 4 : start + 4 + _CUT_BYTES])
                self._cut[0] |= CUT
                self._unread = 4 + size
                start += self._drop(end - start, frames)
                continue
            stop = start + 4 + size
            if stop > end:
                if end - start >= 6 or self._limit_of is None:  # the limit of its API key is checked
                    self.wanted_bytes = 4 + size
                break
            frames.append(view[start + 4 : stop])
            start = stop
        self._start = start
        return frames

    def feed(self, data: Buffer) -> list[memoryview]:
        """As `received` for given bytes (`data_received`, tests)."""
        frames: list[memoryview] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            frames += self.received(count)
            rest = rest[count:]
        return frames

    def _drop(self, count: int, frames: list[memoryview]) -> int:
        """Drops `count` bytes of a frame that is too large. The last one completes its beginning."""
        count = min(count, self._unread)
        self._unread -= count
        if not self._unread:
            frames.append(memoryview(self._cut))
        return count

    def _is_too_large(self, size: int, start: int) -> bool:
        """Whether a frame is above the limit of its API. Raises RemoteProtocolError if no API has such a frame."""
        if size == 0 and self.allows_empty:
            return False
        if size > self._size_bytes_max or size < _FRAME_BYTES_MIN:
            other = ""
            if size >> 16 == _TLS_HANDSHAKE:
                other = ": it looks like TLS, is this a listener without TLS?"
            elif size in _HTTP:
                other = ": it looks like HTTP, which this port does not speak"
            raise RemoteProtocolError(
                f"frame of {size} bytes, allowed are {_FRAME_BYTES_MIN} to {self._size_bytes_max} (socket.request.max.bytes){other}"
            )
        if self._limit_of is not None and self._end - start >= 6:
            return size > self._limit_of(_LENGTH_AND_API_KEY.unpack_from(self._buffer, start)[1])
        return False

    def _replace(self) -> None:
        """Continues in a new buffer for the incomplete frame; only a mapping may exceed the bytes received so far."""
        pending = self._end - self._start
        wanted = self.wanted_bytes
        ordinary = self._buffer_bytes if self.allocated_bytes else min(self._buffer_bytes, _FIRST_BUFFER_BYTES)
        buffer: bytearray | mmap.mmap
        if wanted > _GROWN_BYTES_MAX:
            capacity = wanted
            buffer = anonymous_memory(capacity)
        else:
            capacity = max(ordinary, min(wanted, _GROWTH * pending))
            buffer = bytearray(capacity)
        view = memoryview(buffer)
        view[:pending] = self._view[self._start : self._end]
        self._buffer = buffer
        self._view = view
        self.allocated_bytes = capacity
        self._start = 0
        self._end = pending
