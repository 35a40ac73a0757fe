"""TokenExpiry: removes expired delegation tokens, on the active controller."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.decision import ClusterView
from barnabas.broker.controller.core.delegation_tokens import expired_tokens
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError
from barnabas.work import Work


class TokenExpiry:
    """Queues, by a timer, decisions that remove expired delegation tokens."""

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        submit: Callable[[Callable[[ClusterView], Work], Callable[[bool | BrokerError], None]], None],
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._submit = submit
        self._started = False

    def start(self) -> None:
        if not self._started and self._config.get_str("delegation.token.secret.key"):
            self._started = True
            self._later()

    def _later(self) -> None:
        self._reactor.call_later(self._config.get_int("delegation.token.expiry.check.interval.ms"), self._check)

    def _check(self) -> None:
        self._remove()
        self._later()

    def _remove(self) -> None:
        now_ms = self._reactor.clock.now_ms()
        self._submit(lambda view: expired_tokens(view.image, now_ms), self._removed)

    def _removed(self, more: bool | BrokerError) -> None:
        if more is True:
            self._remove()
