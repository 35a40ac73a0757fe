"""`barnabas txn …`: transactions as their coordinators see them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter

from barnabas.cli.session import Bootstrap, worked
from barnabas.client.admin import Admin

__all__ = ["app"]

app = App(
    name="txn",
    help_epilogue="Examples:\n\n`barnabas txn list --state Ongoing`\n\n`barnabas txn describe my-transactional-id`",
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
    bootstrap: Bootstrap = "localhost:9092",
) -> int:
    """List transactional ids with their producer id and state."""

    async def work() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            for listing in await admin.list_transactions(states=state):
                print(f"{listing.transactional_id}  producer {listing.producer_id}  {listing.state}")

    return worked("txn list", work())


@app.command(help_epilogue="Examples:\n\n`barnabas txn describe my-transactional-id`")
def describe(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")],
    *,
    bootstrap: Bootstrap = "localhost:9092",
) -> int:
    """Show one transactional id: epoch, timeout, start, and the partitions of its open transaction."""

    async def work() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            found = await admin.describe_transaction(transactional_id)
        print(f"{found.transactional_id}  {found.state}")
        print(f"  producer {found.producer_id} epoch {found.producer_epoch}, timeout {found.timeout_ms} ms")
        if found.partitions and found.start_time_ms >= 0:
            print(
                f"  open since {datetime.fromtimestamp(found.start_time_ms / 1000, UTC).isoformat(timespec='milliseconds')}"
            )
        for tp in found.partitions:
            print(f"  {tp.topic}-{tp.partition}")

    return worked("txn describe", work())
