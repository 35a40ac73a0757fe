"""Running: what parts of the kit use of a running cluster. Its handle imports these parts, so they do not import the handle."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from barnabas.testing.backend import Backend
from barnabas.testing.core import Core

T = TypeVar("T")


class Running(Protocol):
    """`Cluster` documents these."""

    @property
    def seed(self) -> str: ...

    @property
    def _limit_s(self) -> float: ...

    def core(self) -> Core: ...

    def backend(self, what: str) -> Backend: ...

    def wait(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T: ...

    async def wait_async(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T: ...

    @property
    def faults(self) -> Any: ...  # Faults, which use this
