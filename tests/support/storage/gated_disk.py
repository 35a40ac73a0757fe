"""A memory disk whose slow calls last until the test lets them end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from barnabas.ports import File
from barnabas.storage.disk import MemoryDisk


class GatedDisk(MemoryDisk):
    """Syncs and removals wait while their gate is closed; both gates are open at first.

    Attributes:
        gate: of syncs.
        removals: of removals.
        rounds: how many files each sync names.
        discarded: the paths of each removal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.removals = asyncio.Event()
        self.removals.set()
        self.rounds: list[int] = []
        self.discarded: list[tuple[str, ...]] = []

    async def sync(self, files: Sequence[File]) -> None:
        self.rounds.append(len(files))
        await self.gate.wait()
        await super().sync(files)

    async def discard(self, *paths: str) -> None:
        self.discarded.append(paths)
        await self.removals.wait()
        await super().discard(*paths)
