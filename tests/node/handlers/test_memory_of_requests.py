"""Memory that the elements of huge requests take on their way through a node: decoded, answered and encoded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from struct import unpack

import pytest

from barnabas.broker.controller.core import configs, topics
from tests.support.broker.nodes import Peer
from tests.support.processes.huge.configs import changed, replaced, resources
from tests.support.processes.huge.records import fetch_partitions, fetch_topics, produce_partitions, produce_topics
from tests.support.processes.huge.request import names
from tests.support.processes.huge.topics import created, deleted
from tests.support.requests import Fields, request_of

COUNT = 10_000
# The largest requests have 100,000 elements and may take 64 MiB; the C library and Python's arenas need a part of that.
BYTES_AN_ELEMENT_MAX = 480

REQUESTS: list[tuple[str, Callable[[], Fields], int]] = [
    ("Produce", lambda: produce_partitions(COUNT, None, topic="unknown"), 9),
    ("Fetch", lambda: fetch_partitions(COUNT, topic="unknown"), 12),
    ("Fetch", lambda: fetch_partitions(COUNT, topic="unknown"), 13),
    ("CreateTopics", lambda: created([f"{n}/" for n in range(COUNT)]), 7),
    ("DeleteTopics", lambda: deleted(names(COUNT)), 6),
    ("AlterConfigs", lambda: replaced(names(COUNT)), 2),
    ("AlterConfigs", lambda: replaced(names(COUNT), kind=4), 2),
    ("IncrementalAlterConfigs", lambda: changed(names(COUNT)), 1),
]
# Of each topic there is a partition as well: twice as many elements.
REQUESTS_OF_TOPICS: list[tuple[str, Callable[[], Fields], int]] = [
    ("Produce", lambda: produce_topics(COUNT // 2), 9),
    ("Fetch", lambda: fetch_topics(COUNT // 2), 12),
    ("Fetch", lambda: fetch_topics(COUNT // 2, session_epoch=0), 12),
]


@pytest.mark.parametrize("number", range(len(REQUESTS) + len(REQUESTS_OF_TOPICS)))
async def test_an_element_takes_little(peer: Peer, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REFUSAL_TEXTS_MAX", COUNT // 10)  # as in a request of 100,000
    monkeypatch.setattr(configs, "REFUSAL_TEXTS_MAX", COUNT // 10)
    api, fields, version = (REQUESTS + REQUESTS_OF_TOPICS)[number]
    request = request_of(api, **fields())
    await peer.call(request, version)  # what is imported and generated for it stays
    tracemalloc.start()
    try:
        peer.send(request, version)
        await peer.writer.drain()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        (size,) = unpack(">i", await peer.reader.readexactly(4))
        await peer.reader.readexactly(size)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (peak - before) / COUNT < BYTES_AN_ELEMENT_MAX


async def test_only_so_many_refusals_have_a_text(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REFUSAL_TEXTS_MAX", 2)
    monkeypatch.setattr(configs, "REFUSAL_TEXTS_MAX", 2)
    answer = await peer.call(request_of("CreateTopics", **created(["a/", "b/", "c/"])), 7)
    assert [(each.error_code, bool(each.error_message)) for each in answer.topics] == [
        (17, True),
        (17, True),
        (17, False),
    ]
    for altered in (
        await peer.call(request_of("AlterConfigs", **replaced(["a", "b", "c"])), 2),
        await peer.call(request_of("IncrementalAlterConfigs", **changed(["a", "b", "c"])), 1),
    ):
        assert [(each.error_code, bool(each.error_message)) for each in altered.responses] == [
            (3, True),
            (3, True),
            (3, False),
        ]


async def test_refusals_of_this_broker_and_of_the_controller_are_in_the_order_of_the_request(peer: Peer) -> None:
    named = [(4, "2"), (2, "a"), (2, "b"), (4, "3"), (2, "a"), (4, "2"), (2, "c")]
    asked = [each for kind, name in named for each in resources(kind, [name], configs=[])]
    answer = await peer.call(request_of("IncrementalAlterConfigs", resources=asked), 1)
    assert [(each.resource_type, each.resource_name, each.error_code) for each in answer.responses] == [
        (4, "2", 42),
        (2, "a", 42),
        (2, "b", 3),
        (4, "3", 42),
        (4, "2", 42),
        (2, "c", 3),
    ]
