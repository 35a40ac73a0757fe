"""The client of the crash matrices: three transactions. The crash comes during the second one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from barnabas.client import Consumer, KafkaError, Producer, TopicPartition
from barnabas.client.types import TransactionVersion
from barnabas.testing.simulation.invariants import TransactionHistory, TransactionOutcome, check_atomic, check_stable
from barnabas.testing.simulation.world import Ports
from tests.support.simulation.workload import TARGET, read_all

GROUP = "crash-group"
READ_FROM = TopicPartition("output", 2)  # any partition that exists
NEVER = 1 << 30


class ThreeTransactions:
    """One run of the client, with the known outcome of its second transaction.

    Args:
        commit: whether the second transaction is to be committed, else aborted.
        version: of the transaction protocol.
        arm: told True when the second transaction is about to begin, False when markers and completion have had
            their time.
        before_s, after_s: pauses around it, the latter for what follows the answer.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        commit: bool,
        version: TransactionVersion,
        timeout_ms: int,
        arm: Callable[[bool], None],
        before_s: float = 0.0,
        after_s: float,
    ) -> None:
        self.bootstrap = bootstrap
        self.commit = commit
        self.version = version
        self.timeout_ms = timeout_ms
        self.second = TransactionOutcome.UNKNOWN if commit else TransactionOutcome.ABORTED
        self._arm = arm
        self._before_s = before_s
        self._after_s = after_s

    def _ports(self, ports: Ports) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "clock": ports.clock,
            "rng": ports.rng,
            "network": ports.network,
        }

    async def client(self, ports: Ports) -> None:
        """The three transactions; the second one's outcome is noted as far as it is known."""
        async with Producer(
            transactional_id="crash",
            transaction_version=self.version,
            transaction_timeout_ms=self.timeout_ms,
            **self._ports(ports),
        ) as producer:
            async with producer.transaction():
                await self._write(producer, b"first", 1)
            if self._before_s:
                await asyncio.sleep(self._before_s)
            self._arm(True)
            await producer.begin_transaction()
            try:
                await self._write(producer, b"second", 2)
                if self.commit:
                    await producer.commit_transaction()
                    self.second = TransactionOutcome.COMMITTED
            except KafkaError:
                self.second = TransactionOutcome.ABORTED  # its commit was never asked for, or refused
                await producer.abort_transaction()
            else:
                if not self.commit:
                    await producer.abort_transaction()
            await asyncio.sleep(self._after_s)
            self._arm(False)
            async with producer.transaction():
                await producer.send("output", b"third-0", partition=0)

    async def _write(self, producer: Producer, name: bytes, offset: int) -> None:
        for partition in (0, 1):
            await (await producer.send("output", b"%s-%d" % (name, partition), partition=partition))
        await producer.send_offsets({READ_FROM: offset}, GROUP)

    async def judge(self, ports: Ports, *, third: bool = True) -> bool:
        """Checks that each is complete or absent, with its offset, and none is open. Returns whether the second is there.

        Args:
            third: whether the client lived to its third one.
        """
        found = await read_all(ports, TARGET, "read_committed", self.bootstrap)
        delivered = [value for values in found.values() for value in values]
        check_atomic(
            [
                TransactionHistory(TransactionOutcome.COMMITTED, [b"first-0", b"first-1"]),
                TransactionHistory(self.second, [b"second-0", b"second-1"]),
                TransactionHistory(TransactionOutcome.COMMITTED, [b"third-0"] if third else []),
            ],
            delivered,
        )
        second_is_seen = b"second-0" in delivered
        async with Consumer(group_id=GROUP, isolation_level="read_committed", **self._ports(ports)) as consumer:
            # The offset is part of the transaction: it went with its records.
            assert await consumer.committed(READ_FROM) == (2 if second_is_seen else 1)
            stable = await consumer.end_offsets(TARGET)
        async with Consumer(**self._ports(ports)) as consumer:
            for tp, high_watermark in (await consumer.end_offsets(TARGET)).items():
                check_stable(stable[tp], high_watermark)
        return second_is_seen
