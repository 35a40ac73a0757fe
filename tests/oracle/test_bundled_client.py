"""The bundled client's tests, all of them, against real Kafka: what it relies on is Kafka's behaviour, not only ours."""

from __future__ import annotations

import pytest

from tests.clients.test_bundled_client import *  # noqa: F403 - the tests are the point of this module
from tests.clients.test_bundled_client import admin, name  # noqa: F401 - fixtures

pytestmark = [pytest.mark.oracle, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def bootstrap(kafka: str) -> str:
    return kafka
