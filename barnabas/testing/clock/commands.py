"""Clock commands inside a node's event loop. Each ends when its effects are committed, or after `wait_ms`: a marker may wait for a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from barnabas.broker.replica.core.machine import Replica
from barnabas.testing.node_host import NodeHost

STATE: Final = "clock"  # in the host: ids of groups
POLL_FIRST_S: Final = 0.0005
POLL_S: Final = 0.01


def start_at(host: NodeHost, offset_ms: int) -> None:
    """Before the node starts."""
    host.travel.move_to(offset_ms)


async def move(host: NodeHost, offset_ms: int, wait_ms: int) -> int | None:
    """Moves the clocks and runs due timers. Returns the offset of the next timer; None without one."""
    travel = host.travel
    timers, clock = host.running.reactor.client_time.timers, travel.client_clock
    travel.move_to(offset_ms)
    timers.on_clock_moved()

    def done() -> bool:
        next_ms = timers.next_ms
        return _is_idle(host) and (next_ms is None or next_ms > clock.monotonic_ms())

    await _until(done, wait_ms)
    following_ms = timers.next_ms
    return None if following_ms is None else following_ms - clock.monotonic_ms() + travel.offset_ms


async def begin(host: NodeHost, wait_ms: int) -> None:
    """Before a jump: runs the log cleaner and notes which groups have members."""
    host.state[STATE] = frozenset(
        group.group_id
        for _, shard in host.running.groups.host.active_shards()
        for group in shard.groups()
        if not group.is_empty
    )
    await clean(host, wait_ms)


async def clean(host: NodeHost, wait_ms: int) -> None:
    """Runs the log cleaner once, after the sync of the records to clean."""
    for _ in range(max(int(wait_ms / 1000 / POLL_S), 1)):
        if await host.running.cleaner.clean_now():
            return
        await asyncio.sleep(POLL_S)


async def check_logs(host: NodeHost) -> None:
    """Applies retention and producer expiry to every log."""
    waiting = list(host.running.replicas.all())
    while waiting:
        waiting = [each for each in waiting if await _checked(host, each)]


async def _checked(host: NodeHost, replica: Replica) -> bool:
    """One slice of work on a log. Returns whether more remains."""
    more = host.running.upkeep.check(replica)
    await asyncio.sleep(0)
    return more


async def expire(host: NodeHost, wait_ms: int) -> None:
    """Expires group offsets and transactional ids. Groups with members at the start of the jump stay: some clients would fail on GROUP_ID_NOT_FOUND."""
    node = host.running
    expired = asyncio.Event()
    node.groups.expire_offsets(expired.set, host.state.pop(STATE, ()))
    await _until(lambda: expired.is_set() and not node.transactions.expire_ids() and _is_idle(host), wait_ms)


def _is_idle(host: NodeHost) -> bool:
    """Whether all coordinator decisions are committed and all markers written."""
    node = host.running
    return node.transactions.host.is_idle and node.groups.host.is_idle and not len(node.transactions.markers)


async def _until(reached: Callable[[], bool], wait_ms: int) -> None:
    loop = asyncio.get_running_loop()
    end_s, pause_s = loop.time() + wait_ms / 1000, 0.0
    while not reached() and loop.time() < end_s:
        await asyncio.sleep(pause_s)
        pause_s = min(max(2 * pause_s, POLL_FIRST_S), POLL_S)
