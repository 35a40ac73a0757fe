"""The kit's commands of the clock, inside a node's loop. `node_commands.py` has their names.

A command ends when its effects are committed, or after its time: a marker for a partition without a leader, for
example, waits for as long as there is no leader.
"""

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
    """Before the start of the node: its clocks begin at this offset."""
    host.travel.move_to(offset_ms)


async def move(host: NodeHost, offset_ms: int, wait_ms: int) -> int | None:
    """Moves the clocks to an offset and runs the timers that are due.

    Returns:
        The offset at which the next timer is due; None without one.
    """
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
    """Before a jump: runs the log cleaner, and notes which groups have members."""
    host.state[STATE] = frozenset(
        group.group_id
        for _, shard in host.running.groups.host.active_shards()
        for group in shard.groups()
        if not group.is_empty
    )
    await clean(host, wait_ms)


async def clean(host: NodeHost, wait_ms: int) -> None:
    """Runs the log cleaner once; waits for the sync of records that are to be cleaned."""
    for _ in range(max(int(wait_ms / 1000 / POLL_S), 1)):
        if await host.running.cleaner.clean_now():
            return
        await asyncio.sleep(POLL_S)


async def check_logs(host: NodeHost) -> None:
    """Applies retention and the expiry of producers to every log."""
    waiting = list(host.running.replicas.all())
    while waiting:
        waiting = [each for each in waiting if await _checked(host, each)]


async def _checked(host: NodeHost, replica: Replica) -> bool:
    """One slice of the work on a log; other requests are served before the next one. Returns whether more is to be done."""
    more = host.running.upkeep.check(replica)
    await asyncio.sleep(0)
    return more


async def expire(host: NodeHost, wait_ms: int) -> None:
    """Deletes expired offsets of groups and expired transactional ids.

    A group that had members when the jump began is not deleted: those that still run join it again, and some clients would take its
    end for an error.
    """
    node = host.running
    expired = asyncio.Event()
    node.groups.expire_offsets(expired.set, host.state.pop(STATE, ()))
    await _until(lambda: expired.is_set() and not node.transactions.expire_ids() and _is_idle(host), wait_ms)


def _is_idle(host: NodeHost) -> bool:
    """Whether everything that the coordinators have decided is committed, and markers are written."""
    node = host.running
    return node.transactions.host.is_idle and node.groups.host.is_idle and not len(node.transactions.markers)


async def _until(reached: Callable[[], bool], wait_ms: int) -> None:
    """Returns when it is so, or after `wait_ms`."""
    loop = asyncio.get_running_loop()
    end_s, pause_s = loop.time() + wait_ms / 1000, 0.0
    while not reached() and loop.time() < end_s:
        await asyncio.sleep(pause_s)
        pause_s = min(max(2 * pause_s, POLL_FIRST_S), POLL_S)
