"""Regular expressions of consumer groups, matched in slices by `broker/patterns`, in linear time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from barnabas.broker.api.access import Access
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.records import ResolvedRegex
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.patterns import Pattern, compile_pattern
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError
from barnabas.protocol.acls import AclOperation, AclResourceType

if TYPE_CHECKING:
    from barnabas.broker.image.image import MetadataImage

REFRESH_INTERVAL_MS = 1_000
NAMES_PER_SLICE = 200  # about 1 ms for each expression

OnResolved = Callable[[int, str, dict[str, ResolvedRegex]], None]
"""Takes the partition of `__consumer_offsets`, the group id, and the topics of each expression."""


class _Search:
    """Expressions of a group, matched with the topics of one metadata image."""

    __slots__ = ("access", "group", "image", "matched", "names", "partition", "patterns")

    def __init__(
        self, partition: int, group: ConsumerGroup, image: MetadataImage, regexes: list[str], access: Access
    ) -> None:
        self.access = access
        self.partition = partition
        self.group = group
        self.image = image
        self.names = sorted(image.topics_by_name)
        self.patterns: dict[str, Pattern] = {}
        for regex in regexes:
            # An expression of another release with a larger syntax matches nothing.
            with suppress(BrokerError):
                self.patterns[regex] = compile_pattern(regex)
        self.matched: dict[str, list[str]] = {regex: [] for regex in regexes}

    def match_slice(self, start: int) -> None:
        names = self.names[start : start + NAMES_PER_SLICE]
        for regex, pattern in self.patterns.items():
            self.matched[regex] += [name for name in names if pattern.fullmatch(name) and self._is_shown(name)]

    def _is_shown(self, name: str) -> bool:
        access = self.access
        return access.unrestricted or access.allows(AclOperation.DESCRIBE, AclResourceType.TOPIC, name, log=False)


class RegexSearch:
    """The searches of one node; one at a time for each group."""

    def __init__(self, reactor: Reactor, current: CurrentImage, found: OnResolved) -> None:
        self._reactor = reactor
        self._current = current
        self._found = found

    def look_up(self, partition: int, group: ConsumerGroup, access: Access) -> None:
        """Starts a search if an expression is new, or if topics or ACLs changed and REFRESH_INTERVAL_MS is over (Kafka: 10 s).

        As in Kafka the member does not wait, and internal topics match; topics that the member of the heartbeat may not describe do not.
        """
        now_ms = self._reactor.clock.monotonic_ms()
        image = self._current.image
        same = group.searched_in is image.topics_by_name and group.searched_acls is image.acls
        changed = not same and now_ms - group.searched_ms >= REFRESH_INTERVAL_MS
        wanted = [regex for regex in group.regex_subscribers if changed or regex not in group.regexes]
        if wanted and not group.is_searching:
            group.is_searching, group.searched_ms = True, now_ms
            if changed or len(wanted) == len(group.regex_subscribers):
                group.searched_in, group.searched_acls = image.topics_by_name, image.acls
            self._continue(_Search(partition, group, image, wanted, access), 0)

    def _continue(self, search: _Search, start: int) -> None:
        search.match_slice(start)
        end = start + NAMES_PER_SLICE
        if end < len(search.names):
            self._reactor.call_later(0, lambda: self._continue(search, end))
            return
        search.group.is_searching = False
        now_ms = self._reactor.clock.now_ms()
        found = {
            regex: ResolvedRegex(tuple(topics), search.image.offset, now_ms) for regex, topics in search.matched.items()
        }
        self._found(search.partition, search.group.group_id, found)
