"""The requests of web interfaces to Kafka and to Barnabas: the same errors, names and structure."""

from __future__ import annotations

import time

import pytest

from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.oracle.ui_requests import GROUP, PAGES, TOPIC, shape
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle

SETTLED_SECONDS_MAX = 60


def prepare(wire: Wire) -> None:
    """A topic of two partitions, and a group with an offset in one of them."""
    wire.create_topic(TOPIC, 2)
    wire.find_coordinator(GROUP, 0)
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
    )
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    while wire.call(request, 8).topics[0].partitions[0].error_code:  # Kafka names a coordinator before it has loaded
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("interface", PAGES)
def test_pages_of_a_web_interface(interface: str, kafka: str, barnabas: str) -> None:
    with Wire(kafka) as theirs, Wire(barnabas) as ours:
        for wire in (theirs, ours):
            prepare(wire)
        for request, version in PAGES[interface]:
            deadline = time.monotonic() + SETTLED_SECONDS_MAX
            expected, answer = shape(theirs.call(request, version)), shape(ours.call(request, version))
            while answer != expected and time.monotonic() < deadline:  # Kafka's broker replays changes later
                time.sleep(0.05)
                expected = shape(theirs.call(request, version))
            assert answer == expected, type(request).__name__
