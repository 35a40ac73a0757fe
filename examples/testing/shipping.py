"""An application on FastStream (its backend for confluent-kafka): for each order it writes a parcel.

At least once: an order is acknowledged after Kafka has acknowledged its parcel, and is read again if anything has failed.
"""

from __future__ import annotations

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker
from pydantic import BaseModel, PositiveInt

__all__ = ["Order", "Parcel", "make_broker"]


class Order(BaseModel):
    """What a customer wants."""

    item: str
    count: PositiveInt


class Parcel(BaseModel):
    """What leaves the house."""

    label: str


def make_broker(bootstrap_servers: str) -> KafkaBroker:
    """FastStream's broker, with the handlers of this application."""
    broker = KafkaBroker(bootstrap_servers, acks="all", enable_idempotence=True, logger=None)

    @broker.subscriber("orders", group_id="shipping", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
    @broker.publisher("parcels")
    async def ship(order: Order) -> Parcel:
        return Parcel(label=f"{order.count} x {order.item}")

    return broker


if __name__ == "__main__":
    asyncio.run(FastStream(make_broker(sys.argv[1])).run())
