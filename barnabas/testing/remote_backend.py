"""Mode "remote": a running Kafka of any kind, known by its bootstrap servers. What needs more than the Kafka protocol raises NotPossible."""

from __future__ import annotations

from barnabas.client import Admin
from barnabas.client.errors import KafkaError
from barnabas.testing.backend import Backend, Mode
from barnabas.testing.errors import KitError


class RemoteBackend(Backend):
    """See the module, and `Backend`."""

    mode: Mode = "remote"

    def __init__(self, bootstrap_servers: str, timeout_s: float) -> None:
        super().__init__()
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
