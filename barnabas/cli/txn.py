"""`barnabas txn …`: shows transactions, and commits or aborts one whose producer is gone."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import App, Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked
from barnabas.client.admin import Admin, TransactionDescription, TransactionListing
from barnabas.client.errors import IllegalState, KafkaError

__all__ = ["app"]

app = App(
    name="txn",
    help_epilogue="Examples:\n\n`barnabas txn list --state Ongoing`\n\n`barnabas txn describe my-transactional-id`\n\n"
    "`barnabas txn explain my-transactional-id` tells what happened to it.\n\n"
    "`barnabas txn commit my-transactional-id --only 4000:7` ends a prepared transaction as was decided elsewhere.",
)


@app.command(name="list", help_epilogue="Examples:\n\n`barnabas txn list --state Ongoing --state PrepareCommit`")
def list_(
    *,
    state: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(), help="Only these: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort."
        ),
    ] = (),
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List transactional ids with their producer id and state."""

    async def work() -> None:
        async with connection.admin() as admin:
            for listing in await admin.list_transactions(states=state):
                print(f"{listing.transactional_id}  producer {listing.producer_id}  {await _described(admin, listing)}")

    return worked("txn list", connection, work())


@app.command(help_epilogue="Examples:\n\n`barnabas txn describe my-transactional-id`")
def describe(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")],
    *,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show one transactional id: epoch, timeout, start, and the partitions of its open transaction."""

    async def work() -> None:
        async with connection.admin() as admin:
            found = await admin.describe_transaction(transactional_id)
        print(f"{found.transactional_id}  {found.state}")
        timeout = "no timeout (two-phase commit)" if found.is_two_phase else f"timeout {found.timeout_ms} ms"
        print(f"  producer {found.producer_id} epoch {found.producer_epoch}, {timeout}")
        if found.partitions and found.start_time_ms >= 0:
            print(
                f"  open since {datetime.fromtimestamp(found.start_time_ms / 1000, UTC).isoformat(timespec='milliseconds')}"
            )
        for tp in found.partitions:
            print(f"  {tp.topic}-{tp.partition}")

    return worked("txn describe", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas txn explain my-transactional-id`\n\n"
    "`barnabas txn explain my-transactional-id --trace kafka-traces/test_orders.kafkatrace`"
)
def explain(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")],
    *,
    trace: Annotated[
        str, Parameter(help="A file that pytest has written with --kafka-trace, instead of a running Kafka.")
    ] = "",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Tell the story of one transactional id: epochs and who bumped them, partitions, markers, fences, and what to do now."""
    from barnabas.cli.txn_explain import explain_live, explain_trace

    return explain_trace(transactional_id, trace) if trace else explain_live(transactional_id, connection)


Only = Annotated[str, Parameter(help="PRODUCER_ID:EPOCH, as `describe` shows them: end only this transaction.")]


@app.command(help_epilogue="Examples:\n\n`barnabas txn commit my-transactional-id --only 4000:7`")
def commit(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")],
    *,
    only: Only = "",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Commit an open transaction in place of its producer, which is fenced off.

    For a prepared transaction whose producer is gone and whose other participant has committed. Needs brokers that
    support KIP-939.
    """

    async def work() -> None:
        await _check_open(transactional_id, only, connection)
        keeping: dict[str, Any] = {"two_phase_commit": True, "keep_prepared": True}
        async with connection.producer(transactional_id=transactional_id, **keeping) as producer:
            kept = producer.prepared
            if kept is None or only not in ("", str(kept)):
                raise IllegalState(f"the transaction of {transactional_id!r} has already ended")
            await producer.complete(kept)
        print(f"committed {transactional_id} {kept}")

    return worked("txn commit", connection, work())


@app.command(help_epilogue="Examples:\n\n`barnabas txn abort my-transactional-id --only 4000:7`")
def abort(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")],
    *,
    only: Only = "",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Abort an open transaction in place of its producer, which is fenced off."""

    async def work() -> None:
        described = await _check_open(transactional_id, only, connection)
        async with connection.producer(transactional_id=transactional_id):
            pass  # InitProducerId aborts the open transaction
        print(f"aborted {transactional_id} {described.producer_id}:{described.producer_epoch}")

    return worked("txn abort", connection, work())


async def _check_open(transactional_id: str, only: str, connection: Connection) -> TransactionDescription:
    async with connection.admin() as admin:
        found = await admin.describe_transaction(transactional_id)
    identity = f"{found.producer_id}:{found.producer_epoch}"
    if found.state != "Ongoing":
        raise IllegalState(f"{transactional_id!r} has no open transaction: it is {found.state}")
    if only not in ("", identity):
        raise IllegalState(f"the open transaction of {transactional_id!r} is {identity}, not {only}: nothing was ended")
    return found


async def _described(admin: Admin, listing: TransactionListing) -> str:
    """Describes a transaction: its state; if it is open, its age and whether it is prepared."""
    if listing.state != "Ongoing":
        return listing.state
    try:
        found = await admin.describe_transaction(listing.transactional_id)
    except KafkaError:  # it ended and was removed after it was listed
        return listing.state
    since = f" for {max(time.time() - found.start_time_ms / 1000, 0):.0f} s" if found.start_time_ms >= 0 else ""
    return f"{found.state}{since}{', no timeout (two-phase commit)' if found.is_two_phase else ''}"
