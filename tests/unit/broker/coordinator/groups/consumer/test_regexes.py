"""RegexSearch: when expressions are looked up again. What they find for whom: tests/node/test_permissions_over_time.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.api.access import FullAccess
from barnabas.broker.coordinator.group_regexes import REFRESH_INTERVAL_MS, RegexSearch
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.image.image import AclImage, MetadataImage


class World:
    """A group with one expression, and its searches."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.searches = 0
        self.current = SimpleNamespace(image=MetadataImage())
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms, now_ms=lambda: self.now_ms)
        self.search = RegexSearch(cast(Any, SimpleNamespace(clock=clock)), cast(Any, self.current), self.found)
        self.group = ConsumerGroup("g")
        self.group.regex_subscribers["orders-.*"] = 1

    def found(self, _partition: int, _group_id: str, resolved: dict[str, Any]) -> None:
        self.searches += 1
        self.group.regexes.update(resolved)

    def beat(self) -> int:
        """A heartbeat; returns the searches so far."""
        self.search.look_up(0, self.group, FullAccess())
        return self.searches

    def change_acls(self) -> None:
        self.current.image = replace(self.current.image, acls={b"id": cast(AclImage, None)})


@pytest.fixture
def world() -> World:
    return World()


def test_an_unchanged_image_is_searched_once(world: World) -> None:
    assert world.beat() == 1
    world.now_ms += REFRESH_INTERVAL_MS
    assert world.beat() == 1


def test_changed_acls_are_a_reason_to_search_again_after_the_interval(world: World) -> None:
    assert world.beat() == 1
    world.change_acls()
    world.now_ms += REFRESH_INTERVAL_MS - 1
    assert world.beat() == 1
    world.now_ms += 1
    assert world.beat() == 2
    world.now_ms += REFRESH_INTERVAL_MS
    assert world.beat() == 2
