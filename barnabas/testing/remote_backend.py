"""Mode "remote": a running Kafka of any kind, known by its bootstrap servers. What needs more than the Kafka protocol raises NotPossible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from barnabas.client import Admin
from barnabas.client.errors import KafkaError
from barnabas.testing.backend import BrokerFiles, Lose, Mode, RunState, not_possible
from barnabas.testing.errors import KitError
from barnabas.testing.extension import Commands


class RemoteBackend:
    """See the module, and `Backend`."""

    mode: Mode = "remote"
    log_dirs = 1

    def __init__(self, bootstrap_servers: str, timeout_s: float) -> None:
        self.on_event: Callable[[int, str, Any], None] = lambda broker_id, name, value: None
        self.before_start: Callable[[int], Commands] = lambda broker_id: ()
        self._bootstrap = bootstrap_servers
        self._timeout_ms = int(timeout_s * 1000)
        self._addresses: dict[int, tuple[str, int]] = {}

    @property
    def bootstrap_servers(self) -> str:
        return self._bootstrap

    @property
    def internal_servers(self) -> str:
        return self._bootstrap

    @property
    def broker_ids(self) -> list[int]:
        return sorted(self._addresses)

    def address(self, broker_id: int) -> tuple[str, int]:
        return self._addresses[broker_id]

    def pid(self, broker_id: int) -> int | None:
        return None

    def files(self, broker_id: int) -> BrokerFiles:
        raise not_possible("the data directory or the log of a broker", self.mode)

    def state(self, broker_id: int) -> RunState:
        return "running"

    def may_end(self, broker_id: int, allowed: bool = True) -> None:
        pass

    async def settle(self, broker_id: int) -> None:
        pass

    def failures(self) -> list[str]:
        return []

    async def start(self) -> None:
        """Asks the cluster for its brokers. Raises KitError if none answers."""
        try:
            async with Admin(
                bootstrap_servers=self._bootstrap, request_timeout_ms=max(self._timeout_ms // 2, 1)
            ) as admin:
                _, _, brokers = await admin.describe_cluster()
        except (KafkaError, ValueError) as error:
            raise KitError(f"no Kafka answers at bootstrap servers '{self._bootstrap}': {error}") from error
        self._addresses = {each.node_id: (each.host, each.port) for each in brokers}

    async def stop(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    async def start_broker(self, broker_id: int) -> None:
        raise not_possible("start_broker", self.mode)

    async def stop_broker(self, broker_id: int) -> None:
        raise not_possible("stop_broker", self.mode)

    async def kill_broker(self, broker_id: int, lose: Lose = "nothing") -> None:
        raise not_possible("kill", self.mode)

    async def pause_broker(self, broker_id: int) -> None:
        raise not_possible("pause", self.mode)

    async def resume_broker(self, broker_id: int) -> None:
        raise not_possible("resume", self.mode)

    async def command(self, broker_id: int, name: str, arguments: Mapping[str, Any]) -> Any:
        raise not_possible(f"command '{name}'", self.mode)
