"""Assembly of a producer's parts from its settings."""

from __future__ import annotations

from typing import NamedTuple

from barnabas.client.net.client_ports import ClientPorts
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.producer.core.batching import Accumulator
from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.core.dispatch import SenderConfig
from barnabas.client.producer.core.sender import Sender
from barnabas.client.producer.core.transactions import Transactions
from barnabas.client.producer.delivery import Delivery
from barnabas.client.producer.routing import Routing


class ProducerParts(NamedTuple):
    """The parts of one producer."""

    cluster: NetworkClient
    accumulator: Accumulator
    transactions: Transactions
    delivery: Delivery
    routing: Routing


def assemble_producer(config: ProducerConfig, ports: ClientPorts) -> ProducerParts:
    cluster = NetworkClient(config, ports, auto_create_topics=True)
    accumulator = Accumulator(
        batch_size=config.max_batch_size,
        linger_ms=config.linger_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        transactional=config.transactional_id is not None,
    )
    transactions = Transactions(
        config.transactional_id,
        cluster.rng,
        timeout_ms=config.transaction_timeout_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        two_phase=config.two_phase_commit,
        keep_prepared=config.keep_prepared,
    )
    sender_config = SenderConfig(
        acks=config.required_acks,
        compression=config.codec,
        idempotent=config.idempotent,
        max_request_size=config.max_request_size,
        max_in_flight=config.max_in_flight_requests_per_connection,
        request_timeout_ms=config.request_timeout_ms,
        retry_backoff_ms=config.retry_backoff_ms,
    )
    sender = Sender(sender_config, accumulator, transactions, cluster.rng)
    delivery = Delivery(cluster, accumulator, sender, transactions)
    routing = Routing(
        cluster,
        accumulator,
        delivery,
        batch_size=config.max_batch_size,
        max_block_ms=config.max_block_ms,
        buffer_memory=config.buffer_memory,
    )
    return ProducerParts(cluster, accumulator, transactions, delivery, routing)
