"""Producer: batches, partition choice, sending with retries, and transactions."""

from __future__ import annotations

from barnabas.client.producer.config import ProducerConfig
from barnabas.client.producer.producer import Producer
from barnabas.client.producer.transaction import Transaction

__all__ = ["Producer", "ProducerConfig", "Transaction"]
