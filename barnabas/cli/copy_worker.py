"""The worker of `barnabas demo`: the exactly-once copy, as a process that may be killed at any moment.

Called as `python -m barnabas.cli.copy_worker BOOTSTRAP INPUT OUTPUT ABORT_EVERY`. Prints one line of JSON a transaction: rows
read and transactions committed and aborted so far. Ends when it has copied everything there was when it started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from barnabas.client.consumer import Consumer
from barnabas.client.exactly_once import CopyProgress, NewMessage, exactly_once
from barnabas.client.producer import Producer
from barnabas.client.types import Record
from barnabas.runtime.loop import run

__all__ = ["main"]


async def copy(bootstrap: str, source: str, target: str, abort_every: int) -> CopyProgress:
    """Copies `source` to `target` until the end that `source` has now; every `abort_every`-th transaction is aborted first."""

    def transform(record: Record) -> Iterable[NewMessage]:
        value = json.dumps({"row": int(record.key), "columns": record.value.decode().split(",")})
        yield NewMessage(target, value.encode(), key=record.key, partition=record.partition)

    vetoed = -1

    def vetoes(progress: CopyProgress) -> bool:
        nonlocal vetoed
        if abort_every and progress.committed % abort_every == abort_every - 1 and vetoed != progress.committed:
            vetoed = progress.committed
            return True
        return False

    consumer = Consumer(
        source,
        bootstrap_servers=bootstrap,
        group_id="copier",
        group_instance_id="copier-1",  # so that a successor takes the place of a killed worker at once (KIP-345)
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = Producer(bootstrap_servers=bootstrap, transactional_id="copier-1", linger_ms=1)
    async with consumer, producer:

        async def on_transaction(progress: CopyProgress) -> bool:
            print(
                json.dumps({"in": progress.records_in, "committed": progress.committed, "aborted": progress.aborted}),
                flush=True,
            )
            assigned = sorted(consumer.assignment())
            ends = await consumer.end_offsets(assigned)
            return bool(assigned) and all([await consumer.position(tp) >= ends[tp] for tp in assigned])

        return await exactly_once(consumer, producer, transform, on_transaction=on_transaction, vetoes=vetoes)


def main() -> None:
    """Entry of the worker process."""
    bootstrap, source, target, abort_every = sys.argv[1:]
    run(copy(bootstrap, source, target, int(abort_every)))


if __name__ == "__main__":
    main()
