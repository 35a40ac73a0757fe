"""Consumer: subscription, positions, fetches, decoding, commits; and `RangeReader` for bulk reads."""

from __future__ import annotations

from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.core.config import ConsumerConfig

__all__ = ["Consumer", "ConsumerConfig"]
