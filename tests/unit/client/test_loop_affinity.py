"""A client works on the event loop of its start alone: calls on another loop are refused at once, and its end there does not hang."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from socket import create_server
from typing import Any
from unittest.mock import create_autospec

import pytest

from barnabas.client import Admin, Consumer, IllegalState, Producer, SendFailed, TopicPartition
from barnabas.client.consumer.ranges import RangeReader
from barnabas.protocol.framing import FrameReader
from barnabas.protocol.record_codec import NewRecord
from barnabas.runtime.framed_socket import FramedSocket

Client = Admin | Consumer | Producer
KINDS = (Admin, Consumer, Producer)
ENDS = ("close", "stop")
ELSEWHERE = "this client was started on another event loop.* make a client for each event loop"


@pytest.fixture
def started() -> Iterator[Callable[..., Any]]:
    """Makes clients that were started, as far as their calls can see, on a loop that is closed or was left open."""
    loops: list[asyncio.AbstractEventLoop] = []
    clients: list[Client] = []

    def make(kind: Callable[..., Any], *, closed: bool = True, **settings: Any) -> Any:
        client = kind(**settings)
        loop = asyncio.new_event_loop()
        loops.append(loop)
        client._home.loop = loop
        if isinstance(client, Producer):
            client._started, client._delivery.loop = True, loop
        elif isinstance(client, Consumer):
            client._reader._loop = loop
        if closed:
            loop.close()
        clients.append(client)
        return client

    yield make
    for client in clients:
        client._home.leave()
    for loop in loops:
        loop.close()


CALLS = [
    (kind, name)
    for kind in KINDS
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and name not in ENDS
]


@pytest.mark.parametrize(("kind", "name"), CALLS, ids=[f"{kind.__name__}.{name}" for kind, name in CALLS])
def test_every_public_call_is_refused_on_another_loop(kind: Any, name: str, started: Callable[..., Any]) -> None:
    client = started(kind)
    method = getattr(client, name)
    values = [
        0
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]

    async def call() -> None:
        outcome = method(*values)
        if inspect.isawaitable(outcome):
            await outcome

    shown = "Producer.send" if name == "send_and_wait" else f"{kind.__name__}.{name}"
    with pytest.raises(
        IllegalState, match=rf"^{shown}: this client was started on another event loop, which is closed"
    ):
        asyncio.run(call())


async def test_iteration_on_another_loop_is_refused(started: Callable[..., Any]) -> None:
    with pytest.raises(IllegalState, match=ELSEWHERE):
        await anext(started(Consumer))


async def test_the_text_says_whether_the_other_loop_is_open(started: Callable[..., Any]) -> None:
    with pytest.raises(IllegalState, match="another event loop, which does not run now"):
        await started(Admin, closed=False).list_topics()


def test_a_call_from_another_thread_is_refused(started: Callable[..., Any]) -> None:
    """Also a call that waits for nothing, from a thread without a loop. While the client's loop does not run, it is allowed."""
    client = started(Consumer, closed=False)
    loop = client._home.loop
    client.pause()
    thread = threading.Thread(target=loop.run_forever)
    running = threading.Event()
    loop.call_soon(running.set)
    thread.start()
    running.wait(60)
    try:
        with pytest.raises(IllegalState, match=r"which runs in another thread: use asyncio\.run_coroutine_threadsafe"):
            client.pause(TopicPartition("orders", 0))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


async def test_a_range_reader_is_refused_on_another_loop(started: Callable[..., Any]) -> None:
    admin = started(Admin)
    reader = RangeReader(admin._cluster, TopicPartition("orders", 0), 0, 1)
    with pytest.raises(IllegalState, match=rf"RangeReader.next: {ELSEWHERE}"):
        await reader.next()


@pytest.mark.parametrize("kind", KINDS)
async def test_stop_ends_a_client_whose_loop_is_closed(kind: Any, started: Callable[..., Any]) -> None:
    client = started(kind)
    await client.stop()
    await client.stop()
    assert client._cluster.closed
    assert client._home.loop is None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del client
        gc.collect()
    assert not [each for each in warned if "was not closed" in str(each.message)]


@pytest.mark.parametrize("kind", KINDS)
async def test_stop_refuses_a_client_whose_loop_is_open(kind: Any, started: Callable[..., Any]) -> None:
    client = started(kind, closed=False)
    with pytest.raises(IllegalState, match=rf"{kind.__name__}.stop: {ELSEWHERE}"):
        await client.stop()
    assert not client._cluster.closed


@pytest.mark.parametrize(
    ("sent", "text"), [(False, "before the record was sent"), (True, "it may or may not have been")]
)
async def test_stop_says_which_records_were_lost_with_the_loop(
    sent: bool, text: str, started: Callable[..., Any]
) -> None:
    producer: Producer = started(Producer, acks=1)
    tp = TopicPartition("orders", 0)
    loop: Any = producer._home.loop
    watched = loop.create_future()
    watched.add_done_callback(print)  # cannot be called: the loop is closed
    for future in (loop.create_future(), watched):
        queue = producer._accumulator.queue(tp)
        record = NewRecord(None, b"tea", 0, ())
        producer._accumulator.append(queue, record, 80, future, producer._clock.monotonic_ms)
    if sent:
        now = producer._clock.monotonic_ms()
        assert list(producer._delivery._sender.drain(now, {tp: 1}, lambda _: True, lambda _: bytes(16)))
    with pytest.raises(SendFailed, match=f"2 records were not acknowledged: .*{text}"):
        await producer.stop()


def _drop(held: list[Any]) -> None:
    held.clear()
    gc.collect()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_was_not_closed_is_reported(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = kind()
    client._home.loop = asyncio.new_event_loop()
    client._home.loop.close()
    held = [client]
    del client
    with pytest.warns(ResourceWarning, match=f"an? {kind.__name__} was not closed: await its stop"):
        _drop(held)
    assert f"{kind.__name__} was not closed" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_cannot_be_copied(kind: Any, duplicate: Callable[[object], object]) -> None:
    with pytest.raises(
        TypeError, match=f"an? {kind.__name__} cannot be copied or pickled, .*: make another {kind.__name__}"
    ):
        duplicate(kind())


def test_the_peer_sees_the_end_of_a_connection_whose_loop_is_closed() -> None:
    class Owner:
        def on_socket_open(self) -> None: ...
        def on_socket_bytes(self, reader: FrameReader, count: int) -> None: ...
        def on_socket_lost(self) -> None: ...

    peer = create_server(("127.0.0.1", 0))
    with peer:
        loop = asyncio.new_event_loop()
        socket = FramedSocket(Owner(), FrameReader())
        loop.run_until_complete(loop.create_connection(lambda: socket, *peer.getsockname()))
        accepted, _ = peer.accept()
        with accepted:
            loop.close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # of asyncio, about its transport
                socket.abandon()
                gc.collect()
            accepted.settimeout(60)
            assert accepted.recv(1) == b""


@pytest.mark.parametrize(
    "call",
    [
        lambda: Admin().delete_topics("orders"),
        lambda: Admin().describe_configs(topic="orders", names="retention.ms"),
    ],
)
def test_a_str_is_no_list_of_its_characters(call: Callable[[], Any]) -> None:
    async def called() -> None:
        await call()

    with pytest.raises(IllegalState, match=r"(topics|names) must be a list, not a str"):
        asyncio.run(called())


def test_a_mock_of_a_client_has_coroutines() -> None:
    assert inspect.iscoroutinefunction(create_autospec(Consumer).commit)
    assert not inspect.iscoroutinefunction(Consumer.seek)
