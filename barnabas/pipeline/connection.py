"""Connects to the cluster that the options name, for source and sink."""

from __future__ import annotations

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
    client: ClientOptions, *, auto_create_topics: bool = False, timeout_ms: int | None = None
) -> NetworkClient:
    """Starts a client of the cluster that the options name.

    Args:
        auto_create_topics: lets metadata requests create topics, if the brokers are configured to.
        timeout_ms: how long to wait for the first answer; by default the request timeout.

    Raises:
        PipelineError: no broker answers, the cluster refuses this client, or a store cannot be read.
    """
    try:
        cluster = NetworkClient(client, auto_create_topics=auto_create_topics)
    except IllegalState as error:
        raise PipelineError("kafka.security.protocol", client.security_protocol, error.message) from None
    try:
        await cluster.start(timeout_ms)
    except BaseException as error:
        await cluster.close()
        if isinstance(error, (AuthenticationFailed, BrokerUnreachable, NotKafka, RequestTimedOut)):
            raise unreachable(client, error) from error
        raise
    return cluster


def unreachable(client: ClientOptions, error: KafkaError) -> PipelineError:
    """Returns the error for a cluster of which no broker answers, or that refuses this client."""
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
