"""A plugin of pytest: clients of an application, with the methods of the test kit's clients. The audit takes no notice of the kit's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer, KitProducer, Maker


@pytest.fixture
def make_producer(kafka: Cluster, kafka_aio_config: dict[str, Any]) -> Iterator[Maker[KitProducer]]:
    maker = Maker(KitProducer, kafka, kafka_aio_config)
    yield maker
    maker.close()


@pytest.fixture
def make_consumer(kafka: Cluster, kafka_aio_config: dict[str, Any]) -> Iterator[Maker[KitConsumer]]:
    maker = Maker(KitConsumer, kafka, kafka_aio_config)
    yield maker
    maker.close()
