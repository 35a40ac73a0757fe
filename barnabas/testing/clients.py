"""The bundled client for tests: producer, consumer and admin with blocking methods, and the same as coroutines under `.aio`.

Driven by: a test. The clients themselves run in the kit's thread, so they work without an event loop of the test, and in any.

Invariants: each call has a deadline. `Maker` closes every client it has made, the latest first.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from barnabas.client import (
    Admin,
    Consumer,
    HeadersToSend,
    Producer,
    Record,
    RecordMetadata,
    SendFailed,
    TopicPartition,
)
from barnabas.client.net.security_arguments import SecurityArguments
from barnabas.testing import kit_thread
from barnabas.testing.cluster import Cluster
from barnabas.testing.errors import KitError, KitTimeout, NearestNames, checked_number, checked_seconds, unknown

__all__ = ["ClientAio", "KitAdmin", "KitConsumer", "KitProducer", "Maker"]

C = TypeVar("C", Producer, Consumer, Admin)
K = TypeVar("K", bound="_Client[Any]")

CALL_S = 75.0  # longest duration of one call: longer than the clients' own limits of 60 s, whose errors name the topic
CLOSE_S = 5.0
CLOSE_WITHOUT_BROKERS_S = 0.2


class _Client(NearestNames, Generic[C]):
    """A client in the kit's thread."""

    _also = ". Every method of barnabas.client is a coroutine of .aio"

    def __init__(self, make: Callable[[], C]) -> None:
        async def start() -> C:
            client = make()
            await client.start()
            return client

        self._owner = os.getpid()
        self._client: C = kit_thread.wait(start(), CALL_S)

    @property
    def aio(self) -> ClientAio:
        """The methods of the client as coroutines, for any asyncio or trio loop."""
        return ClientAio(self)

    def close(self, timeout: float = CLOSE_S) -> bool:
        """Closes the client. Returns False if its brokers do not answer within `timeout` seconds: then its coordinators do not know that it has left."""

        async def stop() -> bool:
            try:
                async with asyncio.timeout(timeout):
                    await self._client.stop()
            except TimeoutError:
                await self._client._cluster.close()
                return False
            except SendFailed:
                pass  # the producer has logged them; the end of a test is no place to fail for records that it gave up
            return True

        return kit_thread.wait(stop(), timeout + CLOSE_S)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """A coroutine for the kit's thread that calls a method of the client."""
        if os.getpid() != self._owner:
            raise KitError(
                f"a client of process {self._owner} cannot be used in its forked child: make another one there"
            )
        method = getattr(self._client, name, None)
        if name.startswith("_") or method is None:
            public = [each for each in dir(self._client) if not each.startswith("_")]
            raise AttributeError(unknown(f"method of {type(self._client).__name__}", name, public))

        async def run() -> Any:
            value = method(*args, **kwargs) if callable(method) else method
            return await value if isawaitable(value) else value

        return run()

    def _wait(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return kit_thread.wait(self.call(name, *args, **kwargs), CALL_S)


class ClientAio:
    """Every method of a bundled client as a coroutine: `await kafka_producer.aio.send_and_wait("orders", b"tea")`."""

    def __init__(self, client: _Client[Any]) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def method(*args: Any, **kwargs: Any) -> Any:
            return await kit_thread.wait_async(self._client.call(name, *args, **kwargs), CALL_S)

        return method


class KitProducer(_Client[Producer]):
    """A producer; the arguments are those of `barnabas.client.Producer`."""

    def send(
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
        options = {"partition": partition, "timestamp_ms": timestamp_ms, "headers": headers}
        written: RecordMetadata = self._wait("send_and_wait", topic, value, key, **options)
        return written

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: commits at the end of the block, aborts on an exception."""
        self._wait("begin_transaction")
        try:
            yield
        except BaseException:
            self._wait("abort_transaction")
            raise
        self._wait("commit_transaction")

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_id: str) -> None:
        """Adds the offsets of a group to the transaction."""
        self._wait("send_offsets", offsets, group_id)


class KitConsumer(_Client[Consumer]):
    """A consumer; the arguments are those of `barnabas.client.Consumer`."""

    def subscribe(self, *topics: str) -> None:
        """Subscribes to topics."""
        self._wait("subscribe", list(topics))

    def assign(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Reads these partitions, without the group."""
        self._wait("assign", list(partitions))

    def take(self, count: int, *, timeout: float = 10.0) -> list[Record[Any, Any]]:
        """Reads exactly `count` records. Raises KitTimeout with what was read if there are fewer within `timeout` seconds."""
        checked_number("take: count", count)
        checked_seconds("take: timeout", timeout, zero=True)
        found: list[Record[Any, Any]] = []

        async def read() -> None:
            while len(found) < count:
                found.append(await self._client.getone())

        try:
            kit_thread.wait(read(), timeout)
        except KitTimeout:
            values = ", ".join(repr(each.value) for each in found[-10:]) or "none"
            if not self._wait("subscription") and not self._wait("assignment"):
                values += ". The consumer reads nothing: call subscribe or assign first"
            raise KitTimeout(f"{len(found)} of {count} records came within {timeout:g} s: {values}") from None
        return found

    def commit(self) -> None:
        """Commits the offsets of all records that were read."""
        self._wait("commit")

    def committed(self, topic: str, partition: int = 0) -> int | None:
        """The committed offset of a partition."""
        offset: int | None = self._wait("committed", TopicPartition(topic, partition))
        return offset

    def assignment(self) -> set[TopicPartition]:
        """The partitions that the consumer reads at present."""
        found: set[TopicPartition] = self._wait("assignment")
        return found


class KitAdmin(_Client[Admin]):
    """An admin client: every method of `barnabas.client.Admin`, blocking."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            return self._wait(name, *args, **kwargs)

        return method


class Maker(Generic[K]):
    """Makes clients of one class with the arguments of a test's Kafka, and closes them."""

    def __init__(self, kind: type[K], client: Callable[..., Any], kafka: Cluster, config: Mapping[str, Any]) -> None:
        self._kind = kind
        self._client = client
        self._kafka = kafka
        self._config = dict(config)
        self._made: list[K] = []

    def __call__(self, *args: Any, **kwargs: Any) -> K:
        """Makes and starts a client."""
        known = {**inspect.signature(self._client).parameters, **SecurityArguments.__annotations__}
        for name in kwargs:
            if name not in known:
                raise TypeError(f"{self._client.__name__}(): {unknown('option', name, known)}")
        client = self._kind(lambda: self._client(*args, **{**self._config, **kwargs}))
        self._made.append(client)
        return client

    def close(self) -> None:
        """Closes all, the latest first. Paused brokers are resumed before, because a client tells its coordinator that it leaves."""
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

    @staticmethod
    def producers(kafka: Cluster, config: Mapping[str, Any]) -> Iterator[Maker[KitProducer]]:
        """The body of the fixture for producers."""
        yield from _fixture(Maker(KitProducer, Producer, kafka, config))

    @staticmethod
    def consumers(kafka: Cluster, config: Mapping[str, Any]) -> Iterator[Maker[KitConsumer]]:
        """The body of the fixture for consumers."""
        yield from _fixture(Maker(KitConsumer, Consumer, kafka, config))

    @staticmethod
    def admins(kafka: Cluster, config: Mapping[str, Any]) -> Iterator[Maker[KitAdmin]]:
        """The body of the fixture for admin clients."""
        yield from _fixture(Maker(KitAdmin, Admin, kafka, config))


def _fixture(maker: Maker[K]) -> Iterator[Maker[K]]:
    try:
        yield maker
    finally:
        maker.close()
