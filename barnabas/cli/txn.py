"""`barnabas txn …`: shows transactions, and commits or aborts one whose producer is gone."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from barnabas.cli.output import Every, Json, Watch, shown
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked, wrong_call
from barnabas.cli.session import each as each_of
from barnabas.cli.times import parse_duration
from barnabas.cli.txn_report import (
    STATES,
    TransactionReport,
    described_transaction,
    description_document,
    description_text,
    listed_transactions,
    listing_document,
    listing_text,
)
from barnabas.client.admin import TransactionDescription
from barnabas.client.errors import IllegalState, KafkaError, ResponseError

__all__ = ["app"]

app = App(
    name="txn",
    help_epilogue="Examples:\n\n`barnabas txn list --state Ongoing`\n\n`barnabas txn describe my-transactional-id`\n\n"
    "`barnabas txn explain my-transactional-id` tells what happened to it.\n\n"
    "`barnabas txn commit my-transactional-id --only 4000:7` commits a prepared transaction whose other participant has committed.",
)
app.command(
    "barnabas.cli.txn_hanging:describe_producers",
    name="describe-producers",
    help="Show the producers that a partition knows, with their open transactions.",
    help_epilogue="Examples:\n\n`barnabas txn describe-producers orders --partition 0`",
)
app.command(
    "barnabas.cli.txn_hanging:find_hanging",
    name="find-hanging",
    help="Find transactions that are open in a partition and unknown to every coordinator.",
    help_epilogue="Examples:\n\n`barnabas txn find-hanging`\n\n`barnabas txn find-hanging --topic orders --older-than 1h`",
)
app.command(
    "barnabas.cli.txn_hanging:abort_hanging",
    name="abort-hanging",
    help="Abort a transaction in one partition that no coordinator knows.",
    help_epilogue="Examples:\n\n`barnabas txn abort-hanging orders --partition 0 --start-offset 1234`",
)


@app.command(
    name="list",
    help_epilogue="Examples:\n\n`barnabas txn list --state Ongoing`\n\n`barnabas txn list --longer-than 15m --json`\n\n"
    "`barnabas txn list --watch`",
)
def list_(
    *,
    state: Annotated[
        tuple[str, ...], Parameter(negative=(), help=f"Only these; may be repeated: {', '.join(STATES)}.")
    ] = (),
    longer_than: Annotated[
        str | None, Parameter(help="Only open transactions that are open for longer: 30s, 15m, 2h, PT1H.")
    ] = None,
    json_: Json = False,
    watch: Watch = False,
    every: Every = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List transactional ids with their producer id, state, and the duration of open transactions."""
    names = {name.lower(): name for name in STATES}
    unknown = [name for name in state if name.lower() not in names]
    if unknown:
        return wrong_call("txn list", f"--state {unknown[0]} is none of {', '.join(STATES)}")
    try:
        duration_ms = None if longer_than is None else parse_duration(longer_than)
    except ValueError as error:
        return wrong_call("txn list", f"--longer-than: {error}")

    async def work() -> None:
        async with connection.admin() as admin:

            async def read() -> list[TransactionReport]:
                found = await listed_transactions(admin, [names[name.lower()] for name in state])
                if duration_ms is not None:
                    found = [each for each in found if (each.open_ms or 0) > duration_ms]
                return found

            await shown(
                read,
                document=lambda found: [listing_document(each) for each in found],
                text=listing_text,
                json_=json_,
                watch=watch,
                every=every,
                empty="no transaction matches" if state or longer_than else "there are no transactions",
            )

    return worked("txn list", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas txn describe my-transactional-id`\n\n`barnabas txn describe id-1 id-2 --json`"
)
def describe(
    *transactional_ids: Annotated[str, Parameter(help="The producers' transactional.id, one or more.")],
    json_: Json = False,
    watch: Watch = False,
    every: Every = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show transactional ids: epoch, timeout, start, and the partitions of the open transaction."""
    if not transactional_ids:
        return wrong_call("txn describe", "name a transactional id")
    missing: dict[str, KafkaError] = {}

    async def work() -> None:
        async with connection.admin() as admin:

            async def read() -> list[TransactionReport]:
                found = []
                for name in dict.fromkeys(transactional_ids):
                    try:
                        found.append(await described_transaction(admin, name))
                    except ResponseError as error:
                        missing[name] = type(error)(f"{name}: {error.message}", code=error.code)
                        if watch:
                            raise missing[name] from error
                return found

            await shown(
                read,
                document=lambda found: [description_document(each) for each in found],
                text=lambda found: "\n".join(description_text(each) for each in found),
                json_=json_,
                watch=watch,
                every=every,
            )

            async def refuse(name: str) -> None:
                raise missing[name]

            await each_of("txn describe", missing, refuse)

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
    """Explain what happened to one transactional id: its epochs and who raised them, partitions, markers, fences, and what to do now."""
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
    """Commit an open transaction in place of its producer, which is fenced.

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
    """Abort an open transaction in place of its producer, which is fenced."""

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
