"""Looks up which topics the regular expressions of consumer groups match, beside other work.

Driven by: the group coordinator after a heartbeat, with expressions that were not looked up in the present metadata.
Emits: the topics found, to a callback; a slice of names a wake-up, so that many topics do not hold the loop.

A member is not kept waiting: it first gets what it subscribes to by name, as in Kafka. Topics that come later are found at the
first heartbeat after that, at most once in REFRESH_INTERVAL_MS a group (Kafka: 10 s). Internal topics count, as in Kafka.
The matcher is `broker/patterns`: linear time, whatever the expression.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.records import ResolvedRegex
from barnabas.broker.current_image import CurrentImage
from barnabas.broker.patterns import Pattern, compile_pattern
from barnabas.broker.reactor import Reactor
from barnabas.errors import BrokerError

if TYPE_CHECKING:
    from barnabas.broker.metadata.image import MetadataImage

__all__ = ["RegexSearch"]

REFRESH_INTERVAL_MS = 1_000
NAMES_PER_SLICE = 200  # about a millisecond an expression

Found = Callable[[int, str, dict[str, ResolvedRegex]], None]
"""(partition of `__consumer_offsets`, group id, what each expression matched)."""


class _Search:
    """One search: expressions of a group, over the topics of one moment."""

    __slots__ = ("group", "image", "matched", "names", "partition", "patterns")

    def __init__(self, partition: int, group: ConsumerGroup, image: MetadataImage, regexes: list[str]) -> None:
        self.partition = partition
        self.group = group
        self.image = image
        self.names = sorted(image.topics_by_name)
        self.patterns: dict[str, Pattern] = {}
        for regex in regexes:
            # One of another release, whose syntax is larger, matches nothing.
            with suppress(BrokerError):
                self.patterns[regex] = compile_pattern(regex)
        self.matched: dict[str, list[str]] = {regex: [] for regex in regexes}

    def look_through(self, start: int) -> None:
        """One slice of the names."""
        names = self.names[start : start + NAMES_PER_SLICE]
        for regex, pattern in self.patterns.items():
            self.matched[regex] += [name for name in names if pattern.fullmatch(name)]


class RegexSearch:
    """The searches of one node; one at a time a group."""

    def __init__(self, reactor: Reactor, current: CurrentImage, found: Found) -> None:
        self._reactor = reactor
        self._current = current
        self._found = found

    def look_up(self, partition: int, group: ConsumerGroup) -> None:
        """Begins a search where an expression is new, or topics have changed and the last search was not a moment ago."""
        now_ms = self._reactor.clock.monotonic_ms()
        image = self._current.image
        changed = group.searched_in is not image.topics_by_name and now_ms - group.searched_ms >= REFRESH_INTERVAL_MS
        wanted = [regex for regex in group.regex_subscribers if changed or regex not in group.regexes]
        if wanted and not group.is_searching:
            group.is_searching, group.searched_ms = True, now_ms
            if changed or len(wanted) == len(group.regex_subscribers):
                group.searched_in = image.topics_by_name
            self._go_on(_Search(partition, group, image, wanted), 0)

    def _go_on(self, search: _Search, start: int) -> None:
        search.look_through(start)
        end = start + NAMES_PER_SLICE
        if end < len(search.names):
            self._reactor.call_later(0, lambda: self._go_on(search, end))
            return
        search.group.is_searching = False
        now_ms = self._reactor.clock.now_ms()
        found = {
            regex: ResolvedRegex(tuple(topics), search.image.offset, now_ms) for regex, topics in search.matched.items()
        }
        self._found(search.partition, search.group.group_id, found)
