"""The requests of web interfaces when they open their pages: a broker answers each, and none with an error that they would show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from barnabas.testing import Broker
from tests.support.oracle.ui_requests import GROUP, PAGES, TOPIC
from tests.support.oracle.wire import Wire
from tests.support.processes.huge.request import commit_of
from tests.support.requests import codes_in, request_of

pytestmark = pytest.mark.process

GROUP_ID_NOT_FOUND = 69


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """A connection to a broker with the topic and the group of the pages."""
    with Broker() as kafka, Wire(kafka.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 2)
        wire.find_coordinator(GROUP, 0)
        assert codes_in(wire.call(request_of("OffsetCommit", **commit_of(2, topic=TOPIC, group=GROUP)), 8)) == {0}
        yield wire


@pytest.mark.parametrize("interface", PAGES)
def test_pages_of_a_web_interface(interface: str, wire: Wire) -> None:
    for request, version in PAGES[interface]:
        # The Java client asks for a KIP-848 group first, and then for a classic one.
        expected = {GROUP_ID_NOT_FOUND} if isinstance(request, ConsumerGroupDescribeRequest) else set()
        assert codes_in(wire.call(request, version)) <= {0} | expected, type(request).__name__
