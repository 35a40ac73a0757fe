"""`barnabas records delete`: deletes the records below an offset, as Kafka's kafka-delete-records does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.confirmation import Yes, confirm
from barnabas.cli.kafka_files import offset_argument, read_offsets_file, without_doubles
from barnabas.cli.render import Cell, Json, Report
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, Ended, client_command
from barnabas.client.admin import Admin
from barnabas.client.errors import KafkaError, RequestTimedOut
from barnabas.client.types import TopicPartition

HIGH_WATERMARK = -1

app = App(name="records", help_epilogue="Examples:\n\n- `barnabas records delete orders:0:100 --dry-run`")


@app.command(
    help_epilogue="Examples:\n\n- `barnabas records delete orders:0:100 orders:1:latest`\n"
    "- `barnabas records delete --file offsets.json --yes`"
)
@client_command("records delete")
async def delete(
    *offsets: Annotated[
        str, Parameter(help="TOPIC:PARTITION:OFFSET, the first offset to keep; `latest` or -1 deletes all records.")
    ],
    file: Annotated[
        Path | None, Parameter(help='JSON of Kafka\'s tool: {"partitions": [{"topic", "partition", "offset"}]}.')
    ] = None,
    dry_run: Annotated[bool, Parameter(name="--dry-run", help="Only show what would be deleted.")] = False,
    yes: Yes = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Delete the records below an offset of partitions, for good. Asks first on a terminal; elsewhere it needs --yes."""
    named = [*map(offset_argument, offsets), *([] if file is None else read_offsets_file(file))]
    without_doubles(partition for partition, _ in named)
    if not named:
        raise WrongCall("nothing to delete: name TOPIC:PARTITION:OFFSET, or --file")
    async with connection.admin() as admin:
        plan = await _plan(admin, dict(named))
        if not dry_run:
            if not yes:
                print(RECORDS.text(plan), file=sys.stderr)
            count = sum(row["records"] or 0 for row in plan)
            confirm(yes, f"delete up to {count} records for good?", "nothing was deleted")
            for row in plan:
                await _delete(admin, row)
    RECORDS.show(plan, json_)
    if any(row["error"] for row in plan):
        raise Ended(1)


async def _plan(admin: Admin, before: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """One row for each partition: where its log begins and ends, and how many records would be deleted at most."""
    first = await admin.list_offsets(dict.fromkeys(before, "earliest"))
    last = await admin.list_offsets(dict.fromkeys(before, "latest"))
    rows = []
    for partition, offset in sorted(before.items()):
        start, end = first[partition].offset, last[partition].offset
        target = end if offset == HIGH_WATERMARK else offset
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "log_start_offset": start,
                "high_watermark": end,
                "delete_before": target,
                "records": max(min(target, end) - start, 0),
                "low_watermark": None,
                "error": None if target <= end else f"OFFSET_OUT_OF_RANGE: the high watermark is {end}",
            }
        )
    return rows


async def _delete(admin: Admin, row: dict[str, Any]) -> None:
    """Deletes what the row of the plan shows, and no records that were written since."""
    partition = TopicPartition(row["topic"], row["partition"])
    if row["error"]:
        return
    try:
        row["low_watermark"] = (await admin.delete_records({partition: row["delete_before"]}))[partition]
    except RequestTimedOut:
        raise
    except KafkaError as error:
        row["error"] = str(error)


RECORDS = Report[dict[str, Any]](
    Cell("partition", text=lambda row: f"{row['topic']}-{row['partition']}", shrinks=True),
    Cell("", "topic"),
    Cell("", "partition"),
    Cell("start", "log_start_offset"),
    Cell("end", "high_watermark"),
    Cell("delete before", "delete_before"),
    Cell("records", "records"),
    Cell("new start", "low_watermark"),
    Cell("error", "error", wrong=lambda row: row["error"]),
)
