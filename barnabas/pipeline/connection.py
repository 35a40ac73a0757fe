"""Connection of source and sink to the cluster of the options."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    IllegalState,
    KafkaError,
    NotKafka,
    RequestTimedOut,
)
from barnabas.client.net.cluster import NetworkClient
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import ClientOptions


async def connected(
    client: ClientOptions,
    topics: Iterable[str] = (),
    *,
    auto_create_topics: bool = False,
    timeout_ms: int | None = None,
) -> NetworkClient:
    """A started client with the metadata of `topics`. Raises PipelineError.

    `timeout_ms` limits the first response; by default the request timeout.
    """
    try:
        cluster = NetworkClient(client, auto_create_topics=auto_create_topics)
    except IllegalState as error:
        raise PipelineError("kafka.security.protocol", client.security_protocol, error.message) from None
    cluster.add_topics(topics)
    try:
        await cluster.start(timeout_ms)
    except BaseException as error:
        await cluster.close()
        if isinstance(error, (AuthenticationFailed, BrokerUnreachable, NotKafka, RequestTimedOut)):
            raise unreachable(client, error) from error
        raise
    return cluster


def unreachable(client: ClientOptions, error: KafkaError) -> PipelineError:
    """The error for a cluster that does not answer or rejects this client."""
    if isinstance(error, AuthenticationFailed):
        return PipelineError(
            "kafka.security.protocol", client.security_protocol, error.message, "does not open the cluster"
        )
    return PipelineError(
        "kafka.bootstrap.servers",
        client.bootstrap_servers,
        "check the address, and start the brokers if none runs there",
        f"cannot be reached ({error.message})",
    )
