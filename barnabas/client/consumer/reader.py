"""Fetch shell of a consumer: sends the fetcher's requests, looks up positions, wakes waiting polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from barnabas.client.consumer.core.fetch_state import Reset
from barnabas.client.consumer.core.fetching import Fetcher, InFlightFetch
from barnabas.client.consumer.core.position_checks import InFlightCheck
from barnabas.client.errors import BrokerUnreachable, ClientClosed, KafkaError, NoOffsetForPartition
from barnabas.client.group.committed_offsets import committed_offsets
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.net.failures import check_login
from barnabas.client.net.offsets import EARLIEST, LATEST, list_offsets
from barnabas.client.net.waiters import Waiters
from barnabas.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from barnabas.errors import ErrorCode, LocalProtocolError
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.messages.offsets import OffsetForLeaderEpochResponse

# The member epoch in the request was stale, or the member was removed: the look-up is repeated if the partitions are still
# assigned.
_MEMBERSHIP_CHANGED = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class Reader:
    """Runs the fetcher of one consumer. `group` returns the member that looks up offsets, and whether it may be fenced."""

    def __init__(
        self, cluster: NetworkClient, fetcher: Fetcher, group: Callable[[], tuple[ConsumerGroupMetadata, bool] | None]
    ) -> None:
        self.fetcher = fetcher
        self.closed = False
        self._cluster = cluster
        self._clock = cluster.clock
        self._group = group
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._waiters = Waiters(cluster.clock)
        self._resolver: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def started(self) -> bool:
        return self._loop is not None

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosed("the consumer is closed")
        if self._loop is None:
            raise ClientClosed("the consumer is not started: await start(), or use it in 'async with'")

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._cluster.close()
        finally:
            self.closed = True
            self.notify()

    def abandon(self) -> None:
        """As `close`, for a closed event loop: tasks that wait there never run."""
        self._cluster.abandon()
        self.closed = True

    def wake(self) -> None:
        """Runs the pump at the end of this event-loop iteration."""
        if not self._pump_scheduled and self._loop is not None and not self.closed:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def notify(self) -> None:
        self._waiters.wake_all()

    async def changed(self, deadline_ms: int | None = None) -> bool:
        """Waits for a change; False after `deadline_ms`."""
        return await self._waiters.wait(deadline_ms)

    async def polled(self, deadline_ms: int | None = None) -> bool:
        """As `changed`, for a poll without records. Raises AuthenticationFailed."""
        check_login(self._cluster.connections())
        return await self.changed(deadline_ms)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self.closed or self._cluster.closed:
            return
        now = self._clock.monotonic_ms()
        fetcher = self.fetcher
        if self._resolver is None and next(fetcher.unresolved(), None) is not None:
            self._resolver = self._cluster.scope.start(self._resolve(), name="positions")
        for fetch in fetcher.next_fetches(now, self._ready):
            self._send_fetch(fetch, now)
        for check in fetcher.checks.requests(lambda node_id: self._cluster.connection(node_id) is not None):
            self._send_check(check, now)
        for node_id in fetcher.interrupts:
            connection = self._cluster.connection(node_id, Purpose.FETCH)
            if connection is not None:
                connection.drop(BrokerUnreachable("abandoned for a more urgent fetch"), at_fault=False)
        fetcher.interrupts.clear()
        if fetcher.metadata_wanted:
            fetcher.metadata_wanted = False
            self._cluster.want_update()
        at = fetcher.wake_at()
        if at is not None and (self._timer is None or at < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = at
            self._timer = asyncio.get_running_loop().call_later(max(1, at - now) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _ready(self, node_id: int) -> bool:
        if self._cluster.connection(node_id, Purpose.FETCH) is not None:
            return True
        if self._cluster.backoff(node_id, Purpose.FETCH) and self.fetcher.on_unreachable(
            node_id, self._clock.monotonic_ms()
        ):
            self.wake()
        return False

    def _send_fetch(self, fetch: InFlightFetch, now: int) -> None:
        connection = self._cluster.connection(fetch.node_id, Purpose.FETCH)

        def done(outcome: Any) -> None:
            at = self._clock.monotonic_ms()
            if isinstance(outcome, FetchResponse):
                self._cluster.metadata.hint_endpoints(outcome.node_endpoints)
                self.fetcher.on_answer(fetch, outcome, at)
            else:
                self.fetcher.on_failure(fetch, outcome, at)
            self.wake()
            if self.fetcher.errors or self.fetcher.has_records():
                self.notify()

        try:
            if connection is None:
                self.fetcher.on_unsent(fetch)
                return
            timeout = self._cluster.request_timeout_ms + fetch.request.max_wait_ms
            connection.send(fetch.request, done, timeout_ms=timeout, version_max=fetch.version_max)
        except (KafkaError, LocalProtocolError) as error:
            failure = error if isinstance(error, KafkaError) else KafkaError(f"cannot be encoded: {error}")
            self.fetcher.on_failure(fetch, failure, now)
            self.notify()

    def _send_check(self, check: InFlightCheck, now: int) -> None:
        checks = self.fetcher.checks

        def done(outcome: Any) -> None:
            at = self._clock.monotonic_ms()
            if isinstance(outcome, OffsetForLeaderEpochResponse):
                checks.on_answer(check, outcome, at)
            else:
                checks.on_failure(check, outcome, at)
            self.wake()
            if self.fetcher.has_records():
                self.notify()

        connection = self._cluster.connection(check.node_id)
        if connection is None:
            checks.on_unsent(check)
            return
        try:
            connection.send(check.request, done, timeout_ms=self._cluster.request_timeout_ms)
        except KafkaError as error:
            checks.on_failure(check, error, now)
            self.wake()

    async def _resolve(self) -> None:
        """Looks up unknown positions, one task at a time: committed offsets first, then by auto_offset_reset."""
        fetcher = self.fetcher
        backoff = Backoff(self._cluster.retry_backoff_ms, self._cluster.rng)
        try:
            while True:
                versions = {state.tp: (state, state.version) for state in fetcher.unresolved()}
                if not versions:
                    return
                try:
                    found = await self._find_positions({tp: state.reset or "" for tp, (state, _) in versions.items()})
                except KafkaError as error:
                    if not error.retriable and error.code not in _MEMBERSHIP_CHANGED:
                        fetcher.errors.append(error)
                        return
                    await asyncio.sleep(backoff.pause_ms(self._clock.monotonic_ms()) / 1000)
                    continue
                for tp, (state, version) in versions.items():
                    if fetcher.partitions.get(tp) is not state or state.version != version:
                        continue
                    if tp in found:
                        fetcher.seek(tp, found[tp].offset, epoch=found[tp].leader_epoch)
                    else:
                        state.reset = None
                        fetcher.errors.append(
                            NoOffsetForPartition(
                                "no committed offset, and auto_offset_reset is 'none': seek first",
                                topic=tp.topic,
                                partition=tp.partition,
                            )
                        )
        finally:
            self._resolver = None
            if not self.closed:
                self.notify()
                if not fetcher.errors:
                    self.wake()

    async def _find_positions(self, resets: dict[TopicPartition, str]) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        ask = [tp for tp, reset in resets.items() if reset == Reset.COMMITTED]
        group = self._group()
        if ask and group is not None:
            member, fenced = group
            committed = await committed_offsets(self._cluster, member, ask, as_member=fenced)
            found = {tp: committed[tp] for tp in ask if tp in committed}
        policy = self.fetcher.config.auto_offset_reset
        wanted: dict[TopicPartition, int] = {}
        for tp, reset in resets.items():
            if tp in found:
                continue
            way = policy if reset == Reset.COMMITTED else reset
            if way != "none":
                wanted[tp] = EARLIEST if way == Reset.EARLIEST else LATEST
        if wanted:
            listed = await list_offsets(self._cluster, wanted, read_committed=self.fetcher.config.read_committed)
            found.update((tp, OffsetAndMetadata(at.offset)) for tp, at in listed.items())
        return found
