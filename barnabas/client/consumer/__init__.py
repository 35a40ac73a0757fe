"""The consumer: positions, fetches, record decoding, commits, and the readers that bulk jobs use."""

from __future__ import annotations

from barnabas.client.consumer.consumer import Consumer

__all__ = ["Consumer"]
