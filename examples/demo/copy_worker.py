"""The worker of `make demo`: the exactly-once copy, as a process that may be killed at any time.

Called as `python -m examples.demo.copy_worker BOOTSTRAP INPUT OUTPUT ABORT_EVERY ROWS`. Prints a line of JSON for each
committed
transaction: rows copied by this and all earlier workers, transactions that this worker has committed and aborted. Ends
when ROWS rows are copied.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from barnabas.client import Consumer, Producer
from barnabas.client.exactly_once import CopyProgress, NewMessage, exactly_once
from barnabas.client.types import Record
from barnabas.runtime.loop import run


async def copy(bootstrap: str, source: str, target: str, abort_every: int, rows: int) -> CopyProgress:
    """Copies the first `rows` records of `source` to `target`; aborts every `abort_every`-th transaction first."""

    def transform(record: Record) -> Iterable[NewMessage]:
        row, columns = record.key or b"", record.value or b""  # the demo writes neither null keys nor null values
        value = json.dumps({"row": int(row), "columns": columns.decode().split(",")})
        yield NewMessage(target, value.encode(), key=record.key, partition=record.partition)

    vetoed = -1
    reported = 0

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
        group_instance_id="copier-1",  # static membership: a new worker replaces a killed one at once (KIP-345)
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = Producer(bootstrap_servers=bootstrap, transactional_id="copier-1", linger_ms=1)
    async with consumer, producer:

        async def on_transaction(progress: CopyProgress) -> bool:
            nonlocal reported
            copied = sum([await consumer.position(tp) for tp in consumer.assignment()])
            if progress.committed > reported:  # unchanged after a poll without records
                reported = progress.committed
                line = {"rows": copied, "committed": progress.committed, "aborted": progress.aborted}
                print(json.dumps(line), flush=True)
            return copied >= rows

        return await exactly_once(consumer, producer, transform, on_transaction=on_transaction, vetoes=vetoes)


def main() -> None:
    """The entry point of the worker process."""
    bootstrap, source, target, abort_every, rows = sys.argv[1:]
    run(copy(bootstrap, source, target, int(abort_every), int(rows)))


if __name__ == "__main__":
    main()
