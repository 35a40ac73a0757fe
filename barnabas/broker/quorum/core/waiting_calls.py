"""Metadata log purgatory: calls that wait for a commit, or for records to fetch.
A call is removed before it is answered, because an answer may make new calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.api.call import Done
from barnabas.broker.quorum.core.machine import RaftMachine
from barnabas.broker.quorum.core.messages import Fetch, RaftRequest, RaftResponse
from barnabas.broker.quorum.core.quorum_state import NO_NODE
from barnabas.errors import BrokerError, ErrorCode

FETCHES_MAX: Final = 10_000  # far more than the nodes of a cluster; further fetches are answered at once, empty
NOT_LEADING: Final = NO_NODE - 1  # an epoch in which no call waits


class _WaitingCommit(NamedTuple):
    next_offset: int
    epoch: int
    done: Done[None]


class WaitingCommits:
    """Calls of the active controller that wait until its records are committed."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[_WaitingCommit] = deque()  # by ascending offset

    def add(self, next_offset: int, machine: RaftMachine, done: Done[None]) -> None:
        """Waits until everything below `next_offset` is committed, in the present epoch."""
        self._waiting.append(_WaitingCommit(next_offset, machine.epoch if machine.is_leader else NO_NODE, done))

    def release(self, given_out: int, machine: RaftMachine) -> None:
        """Answers calls below `given_out`, and NOT_CONTROLLER to calls of past epochs."""
        epoch = machine.epoch if machine.is_leader else NOT_LEADING
        waiting = self._waiting
        while waiting and (waiting[0].next_offset <= given_out or waiting[0].epoch != epoch):
            commit = waiting.popleft()
            if commit.next_offset <= given_out:
                commit.done(None)
            else:
                commit.done(BrokerError(ErrorCode.NOT_CONTROLLER, "leadership of the metadata quorum was lost"))

    def clear(self) -> None:
        self._waiting.clear()


class _WaitingFetch(NamedTuple):
    request: Fetch
    max_bytes: int
    deadline_ms: int
    done: Callable[[RaftResponse], None]


class WaitingFetches:
    """Fetches of replicas that have all records."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[_WaitingFetch] = []  # in order of arrival

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self._waiting) >= FETCHES_MAX

    def add(self, request: Fetch, max_bytes: int, deadline_ms: int, done: Callable[[RaftResponse], None]) -> None:
        self._waiting.append(_WaitingFetch(request, max_bytes, deadline_ms, done))

    def release(self, machine: RaftMachine, now_ms: int) -> None:
        """Answers fetches with new records and fetches past their deadline; all if this node no longer leads."""
        waiting, self._waiting = self._waiting, []
        kept = []
        for fetch in waiting:
            reply = machine.fetch_reply(fetch.request, fetch.max_bytes, waited=now_ms >= fetch.deadline_ms)
            if reply is None:
                kept.append(fetch)
            else:
                fetch.done(reply)
        self._waiting = kept + self._waiting

    def forget(self, request: RaftRequest) -> None:
        """Drops the fetch of a disconnected requester."""
        self._waiting = [waiting for waiting in self._waiting if waiting.request is not request]

    def next_deadline_ms(self) -> int | None:
        return min((waiting.deadline_ms for waiting in self._waiting), default=None)

    def clear(self) -> None:
        self._waiting.clear()
