"""CoreBase: deadlines, order and the kit's own admin client, for all operations of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.backend import Backend, not_possible
from barnabas.testing.errors import ADMIN_CLIENT_ID, KitError, KitTimeout, broker_names
from barnabas.testing.extension import Extension

if TYPE_CHECKING:
    from barnabas.testing.own_admin import OwnAdmin

POLL_FIRST_S: Final = 0.001
POLL_S: Final = 0.02


class CoreBase:
    """Base of Core."""

    def __init__(self, backend: Backend, timeout_s: float) -> None:
        self.backend = backend
        self.extensions: list[Extension] = []  # added on first use
        backend.before_start = lambda broker_id: [
            each for extension in self.extensions for each in extension.before_start(broker_id)
        ]
        backend.on_event = self._on_event
        self.timeout_s = timeout_s  # of one operation
        self._admin: OwnAdmin | None = None
        self._admin_is_stale = False
        self._turn = asyncio.Lock()
        self._missing = ""  # what the present call waits for

    def _on_event(self, broker_id: int, name: str, value: Any) -> None:
        for extension in self.extensions:
            extension.on_event(broker_id, name, value)

    # -- deadlines

    @asynccontextmanager
    async def limit(self, what: str, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Raises KitTimeout, which names `what` and a possible reason."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._missing = ""
        try:
            async with asyncio.timeout(limit) as deadline:
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise KitTimeout(f"{what} took longer than {limit:g} s{self._why()}") from error

    def _why(self) -> str:
        """A possible reason for a missed deadline."""
        missing = f"missing: {self._missing}" if self._missing else ""
        down = [each for each in self.backend.broker_ids if self.backend.state(each) != "running"]
        states = ", ".join(f"broker {each} is {self.backend.state(each)}" for each in down)
        failures = "; ".join(self.backend.failures())
        explanations = [each.explain() for each in self.extensions]
        return "".join(f"; {each}" for each in (missing, states, failures, *explanations) if each)

    async def admin(self) -> OwnAdmin:
        """Raises KitError if no broker runs."""
        if not self._joined():
            states = ", ".join(f"broker {each} is {self.backend.state(each)}" for each in self.backend.broker_ids)
            raise KitError(f"no broker of this cluster runs: {states}; restart or resume one first")
        if self._admin_is_stale:
            self._admin_is_stale = False
            await self._close_admin()
        if self._admin is None:
            from barnabas.testing.own_admin import OwnAdmin  # here, because it would double the time of a first start
            from barnabas.testing.world.admin_network import AdminNetwork

            network = AdminNetwork(self.backend, self._cut_off) if self.backend.mode != "remote" else None
            servers = self.backend.internal_servers
            admin = OwnAdmin(bootstrap_servers=servers, client_id=ADMIN_CLIENT_ID, network=network)
            await admin.start()
            self._admin = admin
        return self._admin

    def on_links_changed(self) -> None:
        """After links were cut or healed, the admin client reconnects to the connected part."""
        self._admin_is_stale = True

    async def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.stop()

    # -- brokers

    def _any_running(self) -> int | None:
        return next(iter(self._joined()), None)

    def running(self) -> list[int]:
        """Without paused brokers."""
        return [each for each in self.backend.broker_ids if self.backend.state(each) == "running"]

    def _joined(self) -> list[int]:
        """Running brokers that are not cut off, so they know the controller's state."""
        cut_off = self._cut_off()
        return [each for each in self.running() if each not in cut_off]

    def _cut_off(self) -> frozenset[int]:
        return frozenset[int]().union(*(each.cut_off() for each in self.extensions))

    def check_broker(self, broker_id: object) -> int:
        """None is the only broker. Raises KitError."""
        known = self.backend.broker_ids
        if broker_id is None and len(known) == 1:
            return known[0]
        if isinstance(broker_id, bool) or not isinstance(broker_id, int) or broker_id not in known:
            raise KitError(f"broker {broker_id!r} is unknown; this cluster has {broker_names(known)}")
        return broker_id

    def own(self, what: str) -> None:
        """Raises NotPossible, naming `what`, if the brokers were started elsewhere."""
        if self.backend.mode == "remote":
            raise not_possible(what, "remote")

    # -- waiting

    async def _until(self, reached: Callable[[], Awaitable[bool]], what: str) -> None:
        """Polls; the caller's deadline limits it."""
        self._missing, pause_s = what, POLL_FIRST_S
        while not await reached():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)
        self._missing = ""

    @asynccontextmanager
    async def turn(self, what: str, factor: int = 1) -> AsyncIterator[None]:
        """For extensions: runs in order with the operations of this class, within `factor` deadlines."""
        async with self._turn, self.limit(what, self.timeout_s * factor):
            yield
