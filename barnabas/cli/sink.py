"""`barnabas sink …`: shows the exactly-once sinks that Spark queries have on a cluster."""

from __future__ import annotations

import time
from typing import Annotated, Final

from cyclopts import App, Parameter

from barnabas.cli.render import DEFAULT_OUTPUT, YELLOW, Cell, Output, Report, duration, named, place
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.cli.streams import printable
from barnabas.client.errors import IllegalState
from barnabas.pipeline.sinks import SinkState

app = App(
    name="sink",
    help_epilogue="Examples:\n\n- `barnabas sink list`\n- `barnabas sink describe invoices`\n"
    "- `barnabas txn abort --sink invoices` ends what a query has left that never starts again.",
)


@app.command(name=["list", "ls"], help_epilogue="Examples:\n\n- `barnabas sink list --json`")
@client_command("sink list")
async def list_(*, output: Output = DEFAULT_OUTPUT, connection: Connection = DEFAULT_CONNECTION) -> None:
    """List the exactly-once sinks with their decided batches and open transactions."""
    async with connection.sink_admin() as admin:
        await output.show(admin.list_sinks, LISTED, empty="there are no sinks")


@app.command(help_epilogue="Examples:\n\n- `barnabas sink describe invoices --json`")
@client_command("sink describe")
async def describe(
    sink_id: Annotated[str, Parameter(help="The sink's sink.id.")],
    *,
    output: Output = DEFAULT_OUTPUT,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show a sink: its query, its last decision, and the partitions that its open transactions hold back."""
    async with connection.sink_admin() as admin:

        async def read() -> list[SinkState]:
            found = [sink for sink in await admin.list_sinks() if sink.sink_id == sink_id]
            if not found:
                raise IllegalState(f"no sink {sink_id!r} has decided a batch or has an open transaction")
            return found

        await output.show(read, DESCRIBED, lambda found: "\n".join(map(_text, found)))


def _open_ms(sink: SinkState) -> int | None:
    """For how long its oldest transaction is open."""
    if not sink.open:
        return None
    return max(round(time.time() * 1000) - sink.open[0].start_time_ms, 0)


def _decided(sink: SinkState) -> int:
    return sum(map(sink.is_decided, sink.open))


_SUMMARY: Final = (
    Cell[SinkState]("sink", "sink_id", shrinks=True),
    Cell[SinkState]("query", "query", lambda s: s.decision.query if s.decision is not None else None),
    Cell[SinkState]("batches", "decided_batches", lambda s: s.decision.next_batch if s.decision is not None else 0),
    Cell[SinkState]("open", "open_transactions", lambda s: len(s.open), wrong=lambda s: bool(s.open), colour=YELLOW),
    Cell[SinkState]("of these decided", "open_and_decided", _decided),
    Cell[SinkState](
        "open for", "duration_ms", _open_ms, lambda s: None if (ms := _open_ms(s)) is None else duration(ms)
    ),
)
LISTED: Final = Report[SinkState](*_SUMMARY)
DESCRIBED: Final = Report[SinkState](
    *_SUMMARY,
    Cell(
        "",
        "transactions",
        lambda s: [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "is_decided": s.is_decided(each),
                "partitions": [place(tp) for tp in sorted(each.partitions)],
            }
            for each in s.open
        ],
    ),
)


def _text(sink: SinkState) -> str:
    """A sink as `sink describe` prints it."""
    decision = sink.decision
    lines = [printable(sink.sink_id)]
    if decision is None:
        lines.append("  no batch is decided")
    else:
        rows = sum(part.rows for part in decision.handles)
        lines.append(printable(f"  query {decision.query or '-'}, {decision.next_batch} batches are decided"))
        lines.append(f"  last decision: {len(decision.handles)} parts, {rows} rows, driver {decision.driver}")
    for each in sink.open:
        state = "decided as committed" if sink.is_decided(each) else "undecided"
        lines.append(printable(f"  {each.transactional_id} {each.producer_id}:{each.producer_epoch}, {state}"))
        lines += [f"    {named(tp)}" for tp in sorted(each.partitions)]
    return "\n".join(lines)
