"""ServerLogin: login shell of one connection; rules are in `sasl_session`.
Before a login and after a session the connection has a router with three APIs, small buffers and a deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

from barnabas.broker.api.call import Answer, Pending
from barnabas.broker.api.principal import Principal
from barnabas.broker.config.sasl_settings import BEARER_MECHANISM
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Offload
from barnabas.broker.scheduling.timers import Timer
from barnabas.broker.security.core.sasl_session import LoginStep, SaslSession, SessionState
from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.connection import ServerConnection, Slot
from barnabas.protocol.memory_budget import MemoryBudget
from barnabas.protocol.registry import API
from barnabas.protocol.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.api.router import Router
    from barnabas.broker.security.jwks import SigningKeys

DEADLINE_MS: Final = 30_000  # for the first login of a connection, and for each re-authentication

LOGIN_BUFFER_BYTES: Final = 2_048  # receive buffer of a connection that has to log in

_Done: TypeAlias = Callable[[Exception | None], None]


class LoginService(NamedTuple):
    """What a connection gets with its first login.

    Attributes:
        router: serves its requests.
        budget: of the memory of its requests.
        limits: of its frames.
    """

    router: Router
    budget: MemoryBudget
    limits: tuple[int, int]


class LoginConnection(Protocol):
    """What a login needs from its connection. `router` serves its next requests."""

    router: Router
    core: ServerConnection

    def authenticated(self, principal: Principal) -> None:
        """The client is authenticated."""
        ...

    def go_on(self) -> None:
        """A blocking frame is served: writes its response and serves the next ones."""
        ...

    def close(self, reason: str, *, level: int = ...) -> None:
        """Closes the connection with one log line."""
        ...


class ServerLogin:
    """Logins of one connection."""

    __slots__ = (
        "_authenticated",
        "_confined",
        "_connection",
        "_counts",
        "_deadline",
        "_delay_ms",
        "_keys",
        "_over",
        "_reactor",
        "_service",
        "_session",
        "_size_bytes_max",
        "_steps",
    )

    def __init__(
        self,
        reactor: Reactor,
        connection: LoginConnection,
        session: SaslSession,
        delay_ms: int,
        *,
        confined: Router,
        size_bytes_max: Callable[[str], int],
        service: LoginService,
        counts: Authentications,
        keys: SigningKeys | None = None,
        steps: LoginSteps,
    ) -> None:
        self._counts = counts
        self._authenticated = False  # it has logged in before
        self._keys = keys
        self._steps = steps
        self._confined = confined
        self._size_bytes_max = size_bytes_max  # of requests by a mechanism; "" before the client has chosen one
        self._service = service
        self._reactor = reactor
        self._connection = connection
        self._session = session
        self._delay_ms = delay_ms
        self._over: Timer | None = None
        self._deadline: Timer | None = reactor.call_later(DEADLINE_MS, self._too_late)

    def may_begin_again(self) -> bool:
        return self._session.may_begin_again(self._reactor.clock.monotonic_ms())

    def on_api_versions(self, *, answered: bool = True) -> Answer:
        """ApiVersions request; None: respond. Raises RemoteProtocolError."""
        step = self._session.on_api_versions(answered=answered)
        return None if step is None else self._done(step)

    def on_handshake(self, mechanism: str, version: int) -> Answer:
        """Raises RemoteProtocolError."""
        if self._session.state in (SessionState.OPEN, SessionState.OVER):
            self._confine()
            self._deadline = self._deadline or self._reactor.call_later(DEADLINE_MS, self._too_late)
        step = self._session.on_handshake(mechanism, version, self._reactor.clock.monotonic_ms())
        if self._session.state in (SessionState.TOKEN, SessionState.RAW_TOKEN):
            self._limit(mechanism)
        self._connection.core.reader.allows_empty = self._session.state is SessionState.RAW_TOKEN
        return self._done(step)

    def on_token(self, token: bytes) -> Answer:
        """Raises RemoteProtocolError."""
        work = self._session.work(token)
        if work is not None:
            waiting: Pending[Message] = Pending(blocks=True)
            waiting.on_closed = self._steps.run(work, lambda failure: self._go_on(waiting, token, failure))
            return waiting
        if self._keys is None or self._keys.keys is not None or self._session.mechanism != BEARER_MECHANISM:
            return self._on_token(token)
        pending: Pending[Message] = Pending(blocks=True)
        cancel = self._keys.when_read(lambda: self._go_on(pending, token))
        if cancel is None:
            return self._on_token(token)
        pending.on_closed = cancel
        return pending

    def _on_token(self, token: bytes) -> Answer:
        return self._done(self._session.on_token(token, self._reactor.clock.now_ms()))

    def _go_on(self, pending: Pending[Message], token: bytes, failure: Exception | None = None) -> None:
        """The signing keys were read for the first time (or failed), or a thread has computed a step."""
        if pending.resolved:
            return  # the connection has ended
        try:
            _checked(failure)
            answer = self._on_token(token)
        except RemoteProtocolError as error:
            self._connection.close(str(error))
            return
        if isinstance(answer, Pending):
            pending.on_closed = answer.closed
            answer.attach(lambda response: pending.resolve(cast("Message | None", response)), None)
        else:
            pending.resolve(cast("Message | None", answer))

    def took_raw_token(self, frame: memoryview) -> bool:
        """Handles a frame without request header, if the client sends such tokens. Raises RemoteProtocolError."""
        if self._session.state is not SessionState.RAW_TOKEN:
            return False
        token, core = bytes(frame), self._connection.core
        work = self._session.work(token, raw=True)
        if work is None:
            self._raw_token(token)
            return True
        slot = Slot()
        core.open(slot)
        core.block()

        def done(failure: Exception | None) -> None:
            if core.closed:
                return
            try:
                _checked(failure)
                failed = self._raw_token(token, slot)
            except RemoteProtocolError as error:
                self._connection.close(str(error))
                return
            if not failed:
                self._connection.go_on()

        slot.cancel = self._steps.run(work, done)
        return True

    def _raw_token(self, token: bytes, slot: Slot | None = None) -> bool:
        """Responds to a token, in its slot if pending. Returns whether the login failed: the connection ends later."""
        step = self._session.on_raw_token(token, self._reactor.clock.now_ms())
        self._done(step)
        parts: list[Buffer] = [] if step.raw is None else [len(step.raw).to_bytes(4, "big") + step.raw]
        if slot is not None:
            self._connection.core.fill(slot, parts)
        elif parts:
            self._connection.core.answer(parts)
        return bool(step.failure)

    def refuses(self, api_key: int) -> bool:
        """Ends a connection with an expired session, except for login requests."""
        router, known = self._connection.router, API.get(api_key)
        if self._session.principal is None or router is not self._confined or known is None or api_key in router.apis:
            return False
        over = self._session.state is SessionState.OVER
        when = "after the end of its session" if over else "before its re-authentication was complete"
        self._connection.close(
            f"{known.name} {when}: a client authenticates again before connections.max.reauth.ms, or the life of its token, is over",
            level=logging.INFO,
        )
        return True

    def stop(self) -> None:
        for timer in (self._over, self._deadline):
            if timer is not None:
                timer.cancel()
        self._over = self._deadline = None

    def _confine(self) -> None:
        self._connection.router = self._confined
        self._limit("")

    def _limit(self, mechanism: str) -> None:
        size_bytes_max = self._size_bytes_max(mechanism)
        self._connection.core.reader.limit(size_bytes_max, size_bytes_max, LOGIN_BUFFER_BYTES)

    # -- decisions of the session

    def _done(self, step: LoginStep) -> Answer:
        if step.failure:
            return self._failed(step.response, step.failure)
        if step.principal is not None:
            self._opened(step.principal, step.lifetime_ms)
        return step.response

    def _opened(self, principal: Principal, lifetime_ms: int | None) -> None:
        self.stop()
        self._counts.on_login(again=self._authenticated, failed=False)
        self._authenticated = True
        self._connection.authenticated(principal)
        router, budget, limits = self._service
        self._connection.router = router
        self._connection.core.count_in(budget)
        self._connection.core.reader.limit(*limits)
        self._connection.core.reader.allows_empty = False
        if lifetime_ms is not None:
            self._over = self._reactor.call_later(lifetime_ms, self._session_over)

    def _session_over(self) -> None:
        self._over = None
        self._session.on_over()
        self._confine()

    def _too_late(self) -> None:
        self._deadline = None
        self._connection.close(f"no login within {DEADLINE_MS} ms", level=logging.INFO)

    def _failed(self, response: Message | None, reason: str) -> Answer:
        """Responds and closes after connection.failed.authentication.delay.ms; later requests wait."""
        pending: Pending[Message] = Pending(blocks=True)
        self._counts.on_login(again=self._authenticated, failed=True)

        def end() -> None:
            pending.resolve(response)
            self._connection.close(f"login failed: {reason}", level=logging.INFO)

        if self._delay_ms == 0:
            self._reactor.soon(end)
        else:
            timer = self._reactor.call_later(self._delay_ms, end)
            pending.on_closed = timer.cancel
        return pending


def _checked(failure: Exception | None) -> None:
    if failure is not None:  # a bug: the work of a step raises nothing
        raise RemoteProtocolError(f"the login cannot be checked: {type(failure).__name__}: {failure}")


class LoginSteps:
    """At most one step per open connection; `offload` runs one."""

    def __init__(self, reactor: Reactor, offload: Offload) -> None:
        self._reactor = reactor
        self._offload = offload
        self._waiting: dict[int, tuple[Callable[[], None], _Done]] = {}  # in the order of arrival
        self._number = 0
        self._running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def run(self, work: Callable[[], None], done: _Done) -> Callable[[], None]:
        """Runs `work` later, then `done` with None or its exception. Returns a cancel function."""
        self._number += 1
        number = self._number
        self._waiting[number] = work, done
        self._next()
        return lambda: self._forget(number)

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _next(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        work, done = self._waiting.pop(next(iter(self._waiting)))
        self._reactor.run_beside(self._offload, work, partial(self._ended, done))

    def _ended(self, done: _Done, failure: Exception | None) -> None:
        self._running = False
        self._next()
        done(failure)


@dataclass(slots=True)
class Authentications:
    """Counters since the start of the node.

    Attributes:
        successful: complete logins; TLS handshakes of a listener without SASL.
        failed: failed logins and TLS handshakes.
        renewed: sessions renewed on the open connection (KIP-368).
        failed_renewals: failed ones.
    """

    successful: int = 0
    failed: int = 0
    renewed: int = 0
    failed_renewals: int = 0

    def on_failed_handshake(self) -> None:
        self.failed += 1

    def on_login(self, *, again: bool, failed: bool) -> None:
        """`again`: a renewal on an open connection."""
        if failed:
            self.failed += not again
            self.failed_renewals += again
        else:
            self.successful += not again
            self.renewed += again
