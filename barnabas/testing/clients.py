"""The bundled client for tests: blocking producers, consumers and admin clients, with coroutines under `.aio`.
They run in the kit's thread, so they need no event loop and work in any. Each call has a deadline.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from barnabas.client import Admin, Consumer, HeadersToSend, Producer, Record, RecordMetadata, SendFailed, TopicPartition
from barnabas.client.net.security_arguments import SecurityArguments
from barnabas.runtime.network import AsyncioNetwork
from barnabas.testing import kit_thread
from barnabas.testing.cluster import Cluster
from barnabas.testing.errors import (
    KitError,
    KitTimeout,
    NearestNames,
    checked_number,
    checked_seconds,
    patience,
    unknown,
)
from barnabas.testing.kit_thread import blocking, coroutine

A = TypeVar("A", bound="_Aio[Any]")
C = TypeVar("C")
K = TypeVar("K", bound="_Client[Any]")
P = ParamSpec("P")
T = TypeVar("T")

CALL_S = 75.0  # longest duration of one call: longer than the clients' own limits of 60 s, whose errors name the topic
CLOSE_S = 5.0
CLOSE_WITHOUT_BROKERS_S = 0.2


_own: list[asyncio.Transport] = []  # the connections of the fixtures' clients


class OwnNetwork(AsyncioNetwork):
    """Network of the fixtures' clients: the audit tells their requests from the application's by connection."""

    async def connect(self, *args: Any, **kwargs: Any) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        transport, protocol = await super().connect(*args, **kwargs)
        _own[:] = [*(each for each in _own if not each.is_closing()), transport]
        return transport, protocol


def is_own(address: str) -> bool:
    """Whether HOST:PORT is the client's end of a connection of a fixture's client."""
    return any("{}:{}".format(*each.get_extra_info("sockname")) == address for each in _own if not each.is_closing())


class _Aio(NearestNames, Generic[C]):
    """Coroutines of a client in the kit's thread, for any asyncio or trio loop."""

    def __init__(self, client: C) -> None:
        self._limit_s = CALL_S * patience()
        self._given = client
        self._owner = os.getpid()

    @property
    def _client(self) -> C:
        if os.getpid() != self._owner:
            raise KitError(
                f"a client of process {self._owner} cannot be used in its forked child: make another one there"
            )
        return self._given


@overload
def _of(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
@overload
def _of(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
def _of(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:

    @wraps(method)
    async def call(self: _Aio[Any], *args: Any, **kwargs: Any) -> Any:
        value = method(self._client, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return coroutine(call)


class ProducerAio(_Aio[Producer]):
    """A producer's methods as coroutines."""

    @coroutine
    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersToSend | None = None,
    ) -> RecordMetadata:
        """Writes a record; returns its place in the log when it is acknowledged."""
        return await self._client.send_and_wait(topic, value, key, partition, timestamp_ms, headers)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction: commits at the end of the block, aborts on an exception."""
        await self.begin_transaction()
        try:
            yield
        except BaseException:
            await self.abort_transaction()
            raise
        await self.commit_transaction()

    abort_transaction = _of(Producer.abort_transaction)
    begin_transaction = _of(Producer.begin_transaction)
    commit_transaction = _of(Producer.commit_transaction)
    complete = _of(Producer.complete)
    flush = _of(Producer.flush)
    partitions_for = _of(Producer.partitions_for)
    prepare = _of(Producer.prepare)
    send_and_wait = _of(Producer.send_and_wait)
    send_offsets = _of(Producer.send_offsets)


class ConsumerAio(_Aio[Consumer]):
    """A consumer's methods as coroutines."""

    @coroutine
    async def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Subscribes to topics, or to topics whose names match a pattern."""
        self._client.subscribe(list(topics), pattern=pattern)

    @coroutine
    async def assign(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Assigns partitions without group management."""
        self._client.assign(list(partitions))

    @coroutine
    async def take(self, count: int, *, timeout: float = 10.0) -> list[Record[Any, Any]]:
        """Reads exactly `count` records. Raises KitTimeout, which shows what was read, after `timeout` seconds."""
        checked_number("take: count", count)
        timeout = checked_seconds("take: timeout", timeout, zero=True)
        found: list[Record[Any, Any]] = []
        try:
            async with asyncio.timeout(timeout) as deadline:
                while len(found) < count:
                    found.append(await self._client.getone())
        except TimeoutError:
            if not deadline.expired():
                raise
            values = ", ".join(repr(each.value) for each in found[-10:]) or "none"
            raise KitTimeout(f"{len(found)} of {count} records came within {timeout:g} s: {values}") from None
        return found

    @coroutine
    async def committed(self, topic: str, partition: int = 0) -> int | None:
        return await self._client.committed(TopicPartition(topic, partition))

    @coroutine
    async def assignment(self) -> set[TopicPartition]:
        return self._client.assignment()

    commit = _of(Consumer.commit)
    beginning_offsets = _of(Consumer.beginning_offsets)
    end_offsets = _of(Consumer.end_offsets)
    getmany = _of(Consumer.getmany)
    getone = _of(Consumer.getone)
    group_metadata = _of(Consumer.group_metadata)
    highwater = _of(Consumer.highwater)
    last_stable_offset = _of(Consumer.last_stable_offset)
    offsets_for_times = _of(Consumer.offsets_for_times)
    partitions_for_topic = _of(Consumer.partitions_for_topic)
    pause = _of(Consumer.pause)
    paused = _of(Consumer.paused)
    position = _of(Consumer.position)
    resume = _of(Consumer.resume)
    seek = _of(Consumer.seek)
    seek_to_beginning = _of(Consumer.seek_to_beginning)
    seek_to_committed = _of(Consumer.seek_to_committed)
    seek_to_end = _of(Consumer.seek_to_end)
    seek_to_time = _of(Consumer.seek_to_time)
    subscription = _of(Consumer.subscription)
    unsubscribe = _of(Consumer.unsubscribe)


if TYPE_CHECKING:  # all methods of Admin are coroutines

    class AdminAio(_Aio[Admin], Admin): ...

else:

    class AdminAio(_Aio[Admin]):
        """Every method of `barnabas.client.Admin` as a coroutine."""


class _Client(NearestNames, Generic[A]):
    """A client in the kit's thread."""

    _also = ". Every method of barnabas.client is a coroutine of .aio"
    _called = "client"  # in texts for a test
    _aio: type[A]
    _bundled: Callable[..., Any]  # the class of the bundled client

    def __init__(self, make: Callable[[], Any]) -> None:
        async def start() -> Any:
            client = make()
            await client.start()
            return client

        self.aio: A = self._aio(
            kit_thread.wait(start(), CALL_S * patience())
        )  # the methods of the client as coroutines

    def close(self, timeout: float = CLOSE_S) -> bool:
        """False if the brokers do not respond within `timeout` seconds: the coordinators then see no leave request."""
        client, timeout = self.aio._client, timeout * patience()

        async def stop() -> bool:
            try:
                async with asyncio.timeout(timeout):
                    await client.stop()
            except TimeoutError:
                await client._cluster.close()
                return False
            except SendFailed:
                pass  # the producer has logged them; the end of a test is no place to fail for records that it gave up
            return True

        return kit_thread.wait(stop(), timeout + CLOSE_S)


class KitProducer(_Client[ProducerAio]):
    """A producer; the arguments are those of `barnabas.client.Producer`."""

    _called = "kafka_producer"
    _aio, _bundled = ProducerAio, Producer

    send = blocking(ProducerAio.send)
    send_offsets = blocking(ProducerAio.send_offsets)
    _begin = blocking(ProducerAio.begin_transaction)
    _abort = blocking(ProducerAio.abort_transaction)
    _commit = blocking(ProducerAio.commit_transaction)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: commits at the end of the block, aborts on an exception."""
        self._begin()
        try:
            yield
        except BaseException:
            self._abort()
            raise
        self._commit()


class KitConsumer(_Client[ConsumerAio]):
    """A consumer; the arguments are those of `barnabas.client.Consumer`."""

    _called = "kafka_consumer"
    _aio, _bundled = ConsumerAio, Consumer

    subscribe = blocking(ConsumerAio.subscribe)
    assign = blocking(ConsumerAio.assign)
    take = blocking(ConsumerAio.take, waits_for_application=True)
    commit = blocking(ConsumerAio.commit)
    committed = blocking(ConsumerAio.committed)
    assignment = blocking(ConsumerAio.assignment)


class KitAdmin(_Client[AdminAio]):
    """An admin client: every method of `barnabas.client.Admin`, blocking."""

    _called = "kafka_admin"
    _aio, _bundled = AdminAio, Admin

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


for _name, _method in inspect.getmembers(Admin, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name not in ("start", "stop", "close"):
        setattr(AdminAio, _name, _of(_method))
        setattr(KitAdmin, _name, blocking(getattr(AdminAio, _name)))


class Maker(Generic[K]):
    """Makes clients of one class with the settings of a test's Kafka, and closes them."""

    def __init__(self, kind: type[K], kafka: Cluster, config: Mapping[str, Any]) -> None:
        self._kind = kind
        self._kafka = kafka
        self._config = dict(config)
        self._made: list[K] = []

    def __call__(self, *args: Any, **kwargs: Any) -> K:
        known = {**inspect.signature(self._kind._bundled).parameters, **SecurityArguments.__annotations__}
        for name in kwargs:
            if name not in known:
                raise TypeError(f"{self._kind._bundled.__name__}(): {unknown('option', name, known)}")
        client = self._kind(lambda: self._kind._bundled(*args, **{**self._config, **kwargs}))
        self._made.append(client)
        return client

    def close(self) -> None:
        """Closes all clients, latest first. Resumes paused brokers before: clients notify their coordinators."""
        if not self._made:
            return
        brokers = self._kafka.brokers if self._kafka.runs else ()
        states = [each.state for each in brokers]
        for broker, state in zip(brokers, states, strict=True):
            if state == "paused":
                broker.resume()
        timeout = CLOSE_WITHOUT_BROKERS_S if all(state == "down" for state in states) else CLOSE_S
        while self._made:
            self._made.pop().close(timeout)


def maker(kind: type[K], kafka: Cluster, config: Mapping[str, Any]) -> Iterator[Maker[K]]:
    """The body of a fixture that makes clients."""
    made = Maker(kind, kafka, {**config, "network": OwnNetwork()})
    try:
        yield made
    finally:
        made.close()
