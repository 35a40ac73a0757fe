"""Producer: batches, partition choice, sending with retries, and transactions."""

from __future__ import annotations

from barnabas.client.producer.core.config import ProducerConfig
from barnabas.client.producer.producer import Producer, Transaction

__all__ = ["Producer", "ProducerConfig", "Transaction"]
