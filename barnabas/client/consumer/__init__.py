"""Consumer: subscription, positions, fetches, decoding, commits; and `RangeReader` for bulk reads."""

from __future__ import annotations

from barnabas.client.consumer.config import ConsumerConfig
from barnabas.client.consumer.consumer import Consumer

__all__ = ["Consumer", "ConsumerConfig"]
