"""What `barnabas txn list` and `txn describe` show: transactional ids, their open transactions and for how long."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from barnabas.cli.output import duration, moment, table
from barnabas.client.admin import Admin, TransactionDescription, TransactionListing
from barnabas.client.errors import KafkaError

__all__ = [
    "STATES",
    "TransactionReport",
    "described_transaction",
    "description_document",
    "description_text",
    "listed_transactions",
    "listing_document",
    "listing_text",
]

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
IN_FLIGHT_MAX: Final = 50  # DescribeTransactions requests at the same time


class TransactionReport(NamedTuple):
    """A transactional id; `found` is None if it is not open, or ended after it was listed. `now_ms` is this machine's time."""

    listing: TransactionListing
    found: TransactionDescription | None
    now_ms: int

    @property
    def state(self) -> str:
        return self.listing.state if self.found is None else self.found.state

    @property
    def start_ms(self) -> int | None:
        """When its open transaction began."""
        if self.found is None or self.found.start_time_ms < 0 or self.state not in OPEN_STATES:
            return None
        return self.found.start_time_ms

    @property
    def open_ms(self) -> int | None:
        """For how long its transaction is open."""
        return None if self.start_ms is None else max(self.now_ms - self.start_ms, 0)


async def listed_transactions(admin: Admin, states: list[str]) -> list[TransactionReport]:
    """The transactional ids of the cluster, with the details of those that have an open transaction."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def described(listing: TransactionListing) -> TransactionDescription | None:
        if listing.state not in OPEN_STATES:
            return None
        async with room:
            try:
                return await admin.describe_transaction(listing.transactional_id)
            except KafkaError:  # it ended and was removed after it was listed
                return None

    listings = sorted(await admin.list_transactions(states=states))
    found = await asyncio.gather(*(described(listing) for listing in listings))
    now_ms = round(time.time() * 1000)
    return [TransactionReport(listing, each, now_ms) for listing, each in zip(listings, found, strict=True)]


async def described_transaction(admin: Admin, transactional_id: str) -> TransactionReport:
    """Describes a transactional id. Raises KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
    found = await admin.describe_transaction(transactional_id)
    listing = TransactionListing(transactional_id, found.producer_id, found.state)
    return TransactionReport(listing, found, round(time.time() * 1000))


def listing_document(report: TransactionReport) -> dict[str, Any]:
    """A transactional id as `txn list --json` prints it."""
    return {
        "transactional_id": report.listing.transactional_id,
        "producer_id": report.listing.producer_id,
        "state": report.state,
        "start_time_ms": report.start_ms,
        "duration_ms": report.open_ms,
        "is_two_phase": None if report.found is None else report.found.is_two_phase,
    }


def listing_text(reports: list[TransactionReport]) -> str:
    """Transactional ids as `txn list` prints them."""
    rows = [
        (
            each.listing.transactional_id,
            str(each.listing.producer_id),
            each.state,
            None if each.open_ms is None else duration(each.open_ms),
            None if each.found is None else _timeout(each.found),
        )
        for each in reports
    ]
    return table(("transactional id", "producer", "state", "open for", "timeout"), rows)


def description_document(report: TransactionReport) -> dict[str, Any]:
    """A transactional id as `txn describe --json` prints it."""
    found = report.found
    if found is None:  # only a listing lacks it
        return listing_document(report)
    return {
        **listing_document(report),
        "producer_epoch": found.producer_epoch,
        "timeout_ms": None if found.is_two_phase else found.timeout_ms,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(found.partitions)],
    }


def description_text(report: TransactionReport) -> str:
    """A transactional id as `txn describe` prints it."""
    found = report.found
    lines = [f"{report.listing.transactional_id}  {report.state}"]
    if found is not None:
        timeout = "no timeout (two-phase commit)" if found.is_two_phase else f"timeout {_timeout(found)}"
        lines.append(f"  producer {found.producer_id} epoch {found.producer_epoch}, {timeout}")
        if report.start_ms is not None and report.open_ms is not None:
            lines.append(f"  open since {moment(report.start_ms)}, for {duration(report.open_ms)}")
        lines += [f"  {tp.topic}-{tp.partition}" for tp in sorted(found.partitions)]
    return "\n".join(lines)


def _timeout(found: TransactionDescription) -> str:
    return "none (two-phase commit)" if found.is_two_phase else duration(found.timeout_ms)
