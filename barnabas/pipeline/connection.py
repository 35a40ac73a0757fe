"""Connection of source and sink to the cluster of the options."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from functools import cache

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
    keep_imports()
    return cluster


@cache
def keep_imports() -> None:
    """Takes what a Python worker of Spark has loaded out of its garbage collections, one after each task and commit.

    Most objects belong to imported modules, and to look at them takes longer than a small task.
    """
    program = sys.modules["__main__"].__spec__
    if program is not None and program.name == "pyspark.daemon":
        gc.collect()
        gc.freeze()


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
