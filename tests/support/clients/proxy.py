"""A TCP proxy before one broker that can hold back a request. Of Kafka's protocol it parses only frames.

`hold(api_key)` takes the next request with this key from its connection and closes the connection to the client, as if
a packet were lost and the client opened a new connection. `Held.release` delivers the request over the old connection,
which the broker still has open. Counts requests and bytes of answers.

All proxies of a process run in one thread with its own loop, since clients under test block theirs.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from struct import unpack
from typing import Any, TypeVar

from tests.support.requests import answer_in

T = TypeVar("T")

WAIT_SECONDS_MAX = 60.0


class _Thread:
    """The loop under all proxies."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="proxies").start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_SECONDS_MAX)


_thread: list[_Thread] = []


def _run(work: Coroutine[Any, Any, T]) -> T:
    if not _thread:
        _thread.append(_Thread())
    return _thread[0].run(work)


@dataclass
class Request:
    """A frame on its way to the broker."""

    frame: bytes  # without its length

    @property
    def api_key(self) -> int:
        return int(unpack(">h", self.frame[:2])[0])

    @property
    def version(self) -> int:
        return int(unpack(">h", self.frame[2:4])[0])

    @property
    def client_id(self) -> str:
        size = int(unpack(">h", self.frame[8:10])[0])
        return self.frame[10 : 10 + max(size, 0)].decode()


@dataclass
class Held:
    """A request to be held back; `caught` is set when it has arrived."""

    api_key: int
    caught: threading.Event = field(default_factory=threading.Event)
    request: Request | None = None
    _lane: _Lane | None = None

    def wait(self) -> Request:
        """Returns once the client has sent it."""
        assert self.caught.wait(WAIT_SECONDS_MAX), f"no request {self.api_key} came"
        assert self.request is not None
        return self.request

    def release(self) -> Any:
        """Delivers the request. Returns the broker's answer, or None if it closes the connection."""
        request = self.wait()
        assert self._lane is not None
        answer = _run(self._lane.deliver(request))
        if answer is None:
            return None
        return answer_in(answer, request.api_key, request.version)


class Proxy:
    """A proxy before the broker at `port` on this machine. Attributes:

    requests: how many came, by client id and API key.
    answered_bytes: in answers, likewise.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: Counter[tuple[str, int]] = Counter()
        self.answered_bytes: Counter[tuple[str, int]] = Counter()
        self._held: list[Held] = []
        self._lanes: list[_Lane] = []
        self._server = _run(self._listen())
        self.listen = int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listen}"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        _run(self._close())

    def hold(self, api_key: int) -> Held:
        """Holds back the next request of this kind."""
        held = Held(api_key)
        self._held.append(held)
        return held

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for lane in self._lanes:
            lane.end()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()  # as if nobody listened here
            return
        for end in (writer, upstream[1]):
            end.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lane = _Lane(self, writer, *upstream)
        self._lanes.append(lane)
        await lane.carry(reader)

    def take(self, request: Request) -> Held | None:
        """The `Held` that waits for this request, if any."""
        self.requests[request.client_id, request.api_key] += 1
        for held in self._held:
            if held.api_key == request.api_key:
                self._held.remove(held)
                return held
        return None


class _Lane:
    """One connection: client, proxy, broker."""

    def __init__(
        self,
        proxy: Proxy,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        broker: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._answers = answers
        self._broker = broker
        self._asked: dict[bytes, tuple[str, int]] = {}  # client and API key by correlation id, of what is unanswered
        self._late: dict[bytes, asyncio.Future[bytes | None]] = {}

    async def carry(self, reader: asyncio.StreamReader) -> None:
        """Until either side ends."""
        back = asyncio.ensure_future(self._carry_back())
        try:
            while True:
                request = Request(await _frame(reader))
                held = self._proxy.take(request)
                if held is not None:
                    self._client.transport.abort()
                    held.request, held._lane = request, self
                    held.caught.set()
                    return  # the broker's side stays open
                self._send(request)
        except (asyncio.IncompleteReadError, OSError):
            self._broker.close()
            await back

    def _send(self, request: Request) -> None:
        self._asked[request.frame[4:8]] = request.client_id, request.api_key
        self._broker.write(len(request.frame).to_bytes(4, "big") + request.frame)

    async def _carry_back(self) -> None:
        try:
            while True:
                frame = await _frame(self._answers)
                self._proxy.answered_bytes[self._asked.pop(frame[:4])] += len(frame)
                late = self._late.pop(frame[:4], None)
                if late is not None:
                    late.set_result(frame)
                elif not self._client.is_closing():
                    self._client.write(len(frame).to_bytes(4, "big") + frame)
        except (asyncio.IncompleteReadError, OSError):
            for late in self._late.values():
                late.set_result(None)
            self._late.clear()
            self.end()

    async def deliver(self, request: Request) -> bytes | None:
        """Sends the request that was held back. Returns the frame of its answer, or None if the connection ends."""
        if self._broker.is_closing():
            return None
        late = self._late[request.frame[4:8]] = asyncio.get_running_loop().create_future()
        self._send(request)
        frame: bytes | None = await late
        return frame

    def end(self) -> None:
        self._client.transport.abort()
        self._broker.transport.abort()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(unpack(">i", await reader.readexactly(4))[0])
