"""AdminNetwork: the kit's admin client avoids brokers that are cut off from the controller."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

from barnabas.runtime.network import AsyncioNetwork
from barnabas.testing.backend import Backend


class AdminNetwork(AsyncioNetwork):
    """See the module.

    Args:
        backend: has the addresses that the client uses.
        cut_off: returns the ids of the brokers that are not to be used at present.
    """

    def __init__(self, backend: Backend, cut_off: Callable[[], frozenset[int]]) -> None:
        super().__init__()
        self._cut_off = cut_off
        addresses = zip(backend.broker_ids, backend.internal_servers.split(","), strict=True)
        self._brokers = {int(address.rpartition(":")[2]): broker_id for broker_id, address in addresses}

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As of Network."""
        if self._brokers.get(port) in self._cut_off():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the broker is cut off by the test", f"{host}:{port}")
        return await super().connect(factory, host, port, **options)
