"""The bundled client's tests, all of them, against real Kafka: what it relies on is Kafka's behaviour, not only ours."""

from __future__ import annotations

import pytest

from barnabas.client import Producer
from barnabas.client.errors import ProducerFailed
from tests.clients.bundled import admin, name  # noqa: F401 - fixtures
from tests.clients.test_admin import *  # noqa: F403 - likewise
from tests.clients.test_bundled_client import *  # noqa: F403 - the tests are the point of this module

pytestmark = [pytest.mark.oracle, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def bootstrap(kafka: str) -> str:
    return kafka


async def test_two_phase_commit_is_refused_in_words(bootstrap: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap, transactional_id="two-phase", two_phase_commit=True)
    with pytest.raises(ProducerFailed, match="KIP-939"):
        await producer.start()
