"""Resolver: names that a name server answers at once, never, and late."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from barnabas.runtime.loop import run
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.resolver import KNOWN_WAIT_S, Resolver


class NameServer:
    """Answers while `hangs` is not set; counts the lookups."""

    def __init__(self, addresses: list[str] | OSError) -> None:
        self.addresses = addresses
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.lookups = 0

    def look(self, host: str) -> list[str]:
        self.lookups += 1
        if self.hangs.is_set():
            self.goes_on.wait(60)
        if isinstance(self.addresses, OSError):
            raise self.addresses
        return self.addresses


def within(seconds: float, body: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(seconds):
            await body

    run(main())


def test_a_name_that_hangs_costs_one_lookup_for_all_its_callers_and_none_of_another_names() -> None:
    async def body() -> None:
        server, other = NameServer(["192.0.2.1"]), NameServer(["192.0.2.2"])
        server.hangs.set()
        resolver = Resolver(lambda host: (server if host == "dead" else other).look(host))
        waiting = [asyncio.ensure_future(resolver.addresses("dead")) for _ in range(50)]
        assert await resolver.addresses("running") == ["192.0.2.2"]
        assert server.lookups == 1
        assert not any(each.done() for each in waiting)
        server.goes_on.set()
        assert [await each for each in waiting] == [["192.0.2.1"]] * 50

    within(60, body())


def test_what_was_known_serves_where_the_name_server_hangs() -> None:
    async def body() -> None:
        server = NameServer(["192.0.2.1"])
        resolver = Resolver(server.look)
        assert await resolver.addresses("running") == ["192.0.2.1"]
        server.hangs.set()
        server.addresses = ["192.0.2.9"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await resolver.addresses("running") == ["192.0.2.1"]
        assert loop.time() - began >= KNOWN_WAIT_S * 0.9
        server.goes_on.set()
        for _ in range(100):  # each waits KNOWN_WAIT_S at the most
            if await resolver.addresses("running") == ["192.0.2.9"]:
                break
        else:
            raise AssertionError("the newer address is never taken")

    within(60, body())


def test_a_name_that_is_gone_is_not_known_any_more() -> None:
    async def body() -> None:
        server = NameServer(["192.0.2.1"])
        resolver = Resolver(server.look)
        assert await resolver.addresses("removed") == ["192.0.2.1"]
        server.addresses = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        with pytest.raises(OSError, match="not known"):
            await resolver.addresses("removed")

    within(60, body())


def test_a_caller_that_gives_up_leaves_the_lookup_to_the_others() -> None:
    async def body() -> None:
        server = NameServer(["192.0.2.1"])
        server.hangs.set()
        resolver = Resolver(server.look)
        patient = asyncio.ensure_future(resolver.addresses("slow"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await resolver.addresses("slow")
        server.goes_on.set()
        assert await patient == ["192.0.2.1"]
        assert server.lookups == 1

    within(60, body())


def test_connects_go_by_the_resolver() -> None:
    async def body() -> None:
        network = AsyncioNetwork(resolver=Resolver(lambda host: ["127.0.0.1"]))
        listener = await network.listen(asyncio.Protocol, "127.0.0.1", 0)
        transport, _ = await network.connect(asyncio.Protocol, "broker.example", listener.address[1])
        transport.abort()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(asyncio.Protocol, "broker.example", 1)

    within(60, body())
