"""Coordinator look-ups of groups and transactional ids, at most one per key at a time, and their cache."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.client.errors import IllegalState, KafkaError, code_of, error_for
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.net.core.metadata import BrokerEndpoint, ClusterMetadata
from barnabas.errors import ErrorCode, LocalProtocolError
from barnabas.ports import Clock, Rng
from barnabas.runtime.scope import Scope

if TYPE_CHECKING:
    from barnabas.protocol.messages.groups import FindCoordinatorResponse

_KEY_TYPES = {"group": 0, "transaction": 1}
_VERSION_MAX = 4


class _Brokers(Protocol):
    """What the look-ups need from the cluster."""

    clock: Clock
    rng: Rng
    scope: Scope
    metadata: ClusterMetadata
    retry_backoff_ms: int

    @property
    def closed(self) -> bool: ...

    async def ask_any(self, request: Any, *, version_max: int) -> Any: ...

    def unreachable(self, node_id: int) -> bool: ...

    def notify_change(self) -> None: ...


class Coordinators:
    """Known coordinators by kind ("group" or "transaction") and key."""

    def __init__(self, brokers: _Brokers) -> None:
        self._brokers = brokers
        self._known: dict[tuple[str, str], int] = {}
        self._lookups: dict[tuple[str, str], None] = {}
        self._errors: dict[tuple[str, str], KafkaError] = {}

    def get(self, kind: str, key: str) -> int | None:
        """Node id; None during a look-up, which starts here if necessary. Raises KafkaError if it failed for good."""
        brokers = self._brokers
        found = self._known.get((kind, key))
        if found in brokers.metadata.brokers:
            return found
        self._known.pop((kind, key), None)
        error = self._errors.pop((kind, key), None)
        if error is not None:
            raise error
        self._begin(kind, key)
        return None

    def look_again(self, node_id: int) -> None:
        """Looks up the coordinators on an unresponsive broker; the old ones stay until then."""
        for kind, key in [each for each, known in self._known.items() if known == node_id]:
            self._begin(kind, key)

    def nodes(self) -> set[int]:
        return set(self._known.values())

    def forget(self, kind: str, key: str) -> None:
        """Drops a coordinator that moved or is unreachable; the next `get` looks it up again."""
        self._known.pop((kind, key), None)

    def _begin(self, kind: str, key: str) -> None:
        if (kind, key) not in self._lookups and not self._brokers.closed:
            self._lookups[kind, key] = None
            self._brokers.scope.start(self._look_up(kind, key), name=f"find {kind} coordinator")

    async def _look_up(self, kind: str, key: str) -> None:
        # here: plain producers need no coordinator
        from barnabas.protocol.messages.groups import FindCoordinatorRequest

        brokers = self._brokers
        request = FindCoordinatorRequest(key=key, key_type=_KEY_TYPES[kind], coordinator_keys=[key])
        backoff = Backoff(brokers.retry_backoff_ms, brokers.rng)
        try:
            while not brokers.closed:
                try:
                    response: FindCoordinatorResponse = await brokers.ask_any(request, version_max=_VERSION_MAX)
                    found = response.coordinators[0] if response.coordinators else response
                    code = code_of(found.error_code)
                    if code is not ErrorCode.NONE:
                        raise error_for(code, found.error_message)
                except KafkaError as error:
                    if not error.retriable:
                        self._errors[kind, key] = error
                        return
                except LocalProtocolError as error:  # no request can carry the key: a lone surrogate, or too long
                    refusal = IllegalState(f"{kind} {key!r}: {error}")
                    refusal.__cause__ = error
                    self._errors[kind, key] = refusal
                    return
                else:
                    known = brokers.metadata.brokers.get(found.node_id)
                    if known is None or (known.host, known.port) != (found.host, found.port):
                        brokers.metadata.brokers[found.node_id] = BrokerEndpoint(found.node_id, found.host, found.port)
                    # The broker that named an unreachable coordinator has probably not noticed its failure yet.
                    if not brokers.unreachable(found.node_id):
                        self._known[kind, key] = found.node_id
                        return
                await asyncio.sleep(backoff.pause_ms(brokers.clock.monotonic_ms()) / 1000)
        finally:
            self._lookups.pop((kind, key), None)
            if not brokers.closed:
                brokers.notify_change()
