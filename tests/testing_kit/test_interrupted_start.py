"""A start that is interrupted, for example by a signal while the process ends."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from barnabas.testing.backend import Shape
from barnabas.testing.process_backend import ProcessBackend
from tests.support.waiting import until

pytestmark = pytest.mark.process


def _no_executor(*_: object) -> NoReturn:
    raise RuntimeError("cannot schedule new futures after interpreter shutdown")


async def test_a_broker_whose_start_is_interrupted_ends_without_an_executor() -> None:
    backend = ProcessBackend(Shape(mode="process"))
    try:
        start = asyncio.ensure_future(backend.start_broker(1))
        await until(lambda: backend.pid(1) is not None)
        asyncio.get_running_loop().run_in_executor = _no_executor  # type: ignore[method-assign,assignment]  # as at the end of a process
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert backend.pid(1) is None
    finally:
        backend.abandon()
