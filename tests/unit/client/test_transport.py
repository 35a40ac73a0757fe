"""The shell of one connection of the client: what becomes of it when it is given up while it is being made."""

from __future__ import annotations

import asyncio
from functools import partial

from barnabas.client.errors import BrokerUnreachable
from barnabas.client.net.transport import Connection
from barnabas.protocol.exchange import Exchange, ExchangeState
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.scope import Scope
from tests.support.rng import SeededRng
from tests.support.waiting import until


def is_negotiating(core: Exchange) -> bool:
    return core.state is ExchangeState.NEGOTIATING


async def test_a_connection_that_is_given_up_before_it_is_made_comes_to_nothing() -> None:
    """Closed, or dropped and opened again, in the same wake-up: only the last attempt may reach the core."""
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _reader, writer: accepted.append(writer), "127.0.0.1", 0)
    scope = Scope("test")
    try:
        for again in (False, True):
            core = Exchange("test", request_timeout_ms=1_000)
            connection = Connection(
                "127.0.0.1",
                server.sockets[0].getsockname()[1],
                core,
                node_id=1,
                clock=SystemClock(),
                rng=SeededRng(),
                network=AsyncioNetwork(),
                scope=scope,
                on_change=lambda: None,
                on_lost=lambda: None,
            )
            connection.open()
            if again:
                connection.drop(BrokerUnreachable("given up"), at_fault=False)
                connection.open()
                await until(partial(is_negotiating, core))
            else:
                connection.close()
            for _ in range(20):
                await asyncio.sleep(0)
            assert core.state is (ExchangeState.NEGOTIATING if again else ExchangeState.CLOSED)
            assert len(accepted) <= again
            connection.close()
    finally:
        await scope.stop()
        server.close()
