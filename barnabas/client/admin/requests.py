"""Base of the admin client: requests to any broker, a leader or a coordinator, with retries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, Self, Unpack

from barnabas.client.errors import COORDINATOR_MOVED, ClientClosed, KafkaError, code_of, error_for
from barnabas.client.loop_affinity import LoopBound
from barnabas.client.net.client_ports import ClientPorts
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.client.net.deadline import Deadline
from barnabas.client.net.security_arguments import SecurityArguments
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.network_port import Network
from barnabas.ports import Clock, Rng
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


def raise_first(results: Iterable[Any]) -> None:
    """Raises the error of the first result that has one."""
    for each in results:
        if each.error_code:
            raise error_for(each.error_code, each.error_message)


def _whole(response: Any) -> Any:
    return response


class AdminRequests(LoopBound):
    """Start, stop and requests of an admin client. Arguments and errors as of Admin."""

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "barnabas-admin",
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 20,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        config = ConnectionConfig.from_arguments(locals())
        self._cluster = NetworkClient(config, ClientPorts(clock, rng, network))
        self._home = self._cluster.home
        self._started = False

    async def start(self) -> None:
        """Connects. Raises KafkaError if no broker can be reached."""
        if not self._started:
            self._started = True
            try:
                await self._cluster.start()
            except BaseException:
                await self._cluster.close()
                raise

    async def stop(self) -> None:
        """Closes the connections."""
        if self._home.is_closed(f"{type(self).__name__}.stop"):
            self._cluster.abandon()
        else:
            await self._cluster.close()

    close = stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self.stop()

    async def _connected(self) -> None:
        if not self._started or self._cluster.closed:
            raise ClientClosed("the admin client is not started, or was closed")

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        wanted = None if topics is None else [MetadataRequestTopic(name=t) for t in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response: MetadataResponse = await self._retried(request, None)
        return response

    async def _retried(
        self,
        request: Any,
        result_of: Callable[[Any], Any] | None = _whole,
        *,
        node_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Sends a request to one broker with retries, and returns the response.

        Args:
            request: the request, or a function that creates it from the milliseconds left.
            result_of: selects the part of the response that has error_code (and error_message); None: nothing is checked.
        """
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        while True:
            try:
                message = request(deadline.left_ms) if callable(request) else request
                response = await self._cluster.request(message, node_id=node_id, timeout_ms=deadline.left_ms)
            except KafkaError as error:
                await deadline.pause(error)
                continue
            result = result_of(response) if result_of is not None else None
            if result is None or not result.error_code:
                return response
            await deadline.missing(error_for(result.error_code, getattr(result, "error_message", None)))

    async def _coordinated(
        self,
        kind: str,
        key: str,
        request: Any,
        result_of: Callable[[Any], Any] = _whole,
        *,
        timeout_ms: int | None = None,
    ) -> Any:
        """As `_retried`, to a coordinator even if it moves."""
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        while True:
            try:
                node_id = await self._cluster.find_coordinator(kind, key, timeout_ms=deadline.left_ms)
                response = await self._cluster.request(
                    request, node_id=node_id, purpose=Purpose.COORDINATOR, timeout_ms=deadline.left_ms
                )
            except KafkaError as error:
                self._cluster.forget_coordinator(kind, key)
                await deadline.pause(error)
                continue
            result = result_of(response)
            code = code_of(result.error_code)
            if code is ErrorCode.NONE:
                return response
            if code in COORDINATOR_MOVED:
                self._cluster.forget_coordinator(kind, key)
            await deadline.pause(error_for(code, getattr(result, "error_message", None)))

    async def _of_leader(
        self,
        partition: TopicPartition,
        request: Any,
        result_of: Callable[[Any], Any],
        *,
        timeout_ms: int | None = None,
    ) -> Any:
        """As `_retried`, to a partition's leader even if it moves; returns the result of `result_of`."""
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        topic, number = partition
        while True:
            leader = self._cluster.metadata.leaders.get(partition)
            try:
                if leader is None:
                    raise self._cluster.metadata.no_leader(partition)
                response = await self._cluster.request(request, node_id=leader, timeout_ms=deadline.left_ms)
                result = result_of(response)
                if not result.error_code:
                    return result
                raise error_for(
                    result.error_code, getattr(result, "error_message", None), topic=topic, partition=number
                )
            except KafkaError as error:
                self._cluster.want_update()
                await deadline.missing(error)

    async def _each(
        self,
        request: Callable[[int], Any],
        results: Callable[[Any], Iterable[Any]],
        left: dict[str, Any],
        timeout_ms: int | None,
        *,
        final: frozenset[ErrorCode] = frozenset(),
        refused: MutableMapping[str, KafkaError] | None = None,
    ) -> None:
        """Sends a request for several topics with retries; then raises the first final error.

        Args:
            request: creates the request for the topics in `left` from the milliseconds left.
            results: selects the results of the response, which have name, error_code and error_message.
            left: remaining topics.
            final: retriable codes that are not retried here.
            refused: gets the errors by topic, instead of raising the first.
        """
        await self._connected()
        deadline = Deadline(self._cluster, timeout_ms)
        refusals: MutableMapping[str, KafkaError] = {} if refused is None else refused
        while left:
            try:
                response = await self._cluster.request(request(deadline.left_ms), timeout_ms=deadline.left_ms)
            except KafkaError as error:
                await deadline.pause(error)
                continue
            problem: KafkaError | None = None
            for result in results(response):
                if result.error_code:
                    refusal = error_for(result.error_code, result.error_message, topic=result.name)
                    if refusal.retriable and refusal.code not in final:
                        problem = refusal
                        continue
                    refusals.setdefault(result.name or "", refusal)
                left.pop(result.name or "", None)
            if problem is not None:
                await deadline.missing(problem)
        if refused is None and refusals:
            raise next(iter(refusals.values()))
