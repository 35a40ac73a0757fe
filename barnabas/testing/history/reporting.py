"""What a test's report says about its Kafka, and the trace of the test."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from barnabas import __version__
from barnabas.runtime.clock import SystemClock
from barnabas.testing import kit_thread
from barnabas.testing.cluster import Cluster
from barnabas.testing.errors import KitError, patience
from barnabas.testing.history.core.evidence import clock
from barnabas.testing.history.handles import History
from barnabas.testing.history.last_requests import WAITS
from barnabas.testing.history.trace import SUFFIX

if TYPE_CHECKING:
    from barnabas.client import Admin
    from barnabas.client.admin import TransactionDescription
    from barnabas.testing.core import Core

ASKED_S: Final = 3.0
LINES_MAX: Final = 120
CHARS_MAX: Final = 140  # of a line
CONNECTIONS_MAX: Final = 12
CONNECTIONS_OF_CLIENT_MAX: Final = 6
REQUESTS_MAX: Final = 8  # of each client
TRANSACTIONS_MAX: Final = 10
PARTITIONS_MAX: Final = 200  # that are asked for the producers that hold readers back
OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


def failure_text(node_id: str, seed: int | None) -> str:
    """The text of the section; "" if no cluster of this process has served anybody.

    Args:
        node_id: of the failed test.
        seed: of the run, if it was drawn.
    """
    lines: list[str] = []
    for handle in kit_thread.kept():
        if isinstance(handle, Cluster):
            lines += _of_cluster(handle)
    if not lines:
        return ""
    with_seed = "" if seed is None else f" --kafka-seed={seed}"
    lines += [f"to run it again: pytest '{node_id}'{with_seed}"]
    if len(lines) > LINES_MAX:
        lines[LINES_MAX - 2 : -1] = [f"({len(lines) - LINES_MAX + 1} lines left out)"]
    return "\n".join(each if len(each) <= CHARS_MAX else f"{each[: CHARS_MAX - 1]}…" for each in lines)


def _of_cluster(handle: Cluster) -> list[str]:
    try:
        return kit_thread.wait(_lines(handle), 2 * ASKED_S * patience())
    except Exception as error:  # the failure of the test must be shown, whatever the brokers do
        return [f"{handle!r} could not be asked: {type(error).__name__}: {error}"]


async def _lines(handle: Cluster) -> list[str]:
    core = handle.core()
    faults = [
        f"  {each}: {each.counted} {'hit' if each.counted == 1 else 'hits'}"
        for each in handle.installed_faults()
        if each.counted
    ]
    transactions, holds, problem = await _transactions(core)
    requests, silent = await _requests(handle, core, {each.transactional_id for each in transactions})
    if not requests and not faults and not transactions:
        return []
    down = [f"broker {each} is {core.backend.state(each)}" for each in core.backend.broker_ids]
    lines = [f"{handle!r}", *(f"  {each}" for each in down if not each.endswith("running")), *silent]
    lines += ["", "open transactions", *_open(transactions, holds, problem)]
    if requests:
        lines += ["", "last requests of each client (UTC)", *requests]
    if faults:
        lines += ["", "faults that fired", *faults]
    return [*lines, ""]


# -- requests


async def _requests(handle: Cluster, core: Core, open_ids: set[str]) -> tuple[list[str], list[str]]:
    """Lines for each client, by its id: those with an open transaction first, then those without an answer, then the newest."""
    history = handle.noted()
    if history is None:
        return [], []
    clients: dict[str, list[_Connection]] = {}
    silent = []
    for broker_id in core.backend.broker_ids:
        try:
            async with asyncio.timeout(ASKED_S * patience()):
                told = await history.last_requests(broker_id)
        except (TimeoutError, KitError, RuntimeError) as error:
            silent.append(f"  broker {broker_id} did not tell its last requests: {error or 'no answer'}")
            continue
        for each in filter(lambda each: each["requests"], told):
            clients.setdefault(each["client"], []).append(_connection(broker_id, each, open_ids))
    lines: list[str] = []
    room = CONNECTIONS_MAX
    for name, found in sorted(clients.items(), key=lambda each: max(each[1]), reverse=True):
        found.sort(reverse=True)
        shown = found[: min(room, CONNECTIONS_OF_CLIENT_MAX)]
        room -= len(shown)
        lines += [line for each in shown for line in each.lines]
        if len(found) > len(shown):
            lines.append(f"  ({len(found) - len(shown)} further connections of client '{name}' left out)")
    return lines, silent


class _Connection(NamedTuple):
    """What the section says about a connection; the first fields order it."""

    in_transaction: bool
    waits: bool
    at_ms: int
    lines: list[str]


def _connection(broker_id: int, told: dict[str, Any], open_ids: set[str]) -> _Connection:
    name = f"client '{told['client']}'" if told["client"] else "a client"
    ended = ", ended" if told["closed"] else ""
    requests = told["requests"][-REQUESTS_MAX:]
    rows = [(clock(each["at_ms"]), each["api"], each["subject"], each["outcome"]) for each in requests]
    lines = [f"  {name} from {told['address']} at broker {broker_id}{ended}", *_aligned(rows, "    ")]
    words = {word.strip(",") for each in told["requests"] for word in each["subject"].split(" ")}
    waits = any(
        each["outcome"] == WAITS and each["api"] != "Fetch" for each in requests
    )  # an idle reader waits in a Fetch
    return _Connection(not words.isdisjoint(open_ids), waits, requests[-1]["at_ms"], lines)


def _aligned(rows: Iterable[tuple[str, ...]], indent: str) -> list[str]:
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]


# -- transactions


async def _transactions(core: Core) -> tuple[list[TransactionDescription], dict[int, list[str]], str]:
    """The transactions that have not ended, the partitions whose readers they hold back, and why they may not be all."""
    from barnabas.client import KafkaError

    try:
        async with asyncio.timeout(ASKED_S * patience()):
            admin = await core.admin()
            listed = await admin.list_transactions(states=OPEN)
            described = [await admin.describe_transaction(each.transactional_id) for each in listed[:TRANSACTIONS_MAX]]
            return described, await _held_back(admin, described), ""
    except TimeoutError:
        return [], {}, f"the coordinators did not answer within {ASKED_S:g} s"
    except (KafkaError, KitError) as error:
        return [], {}, str(error)


async def _held_back(admin: Admin, described: list[TransactionDescription]) -> dict[int, list[str]]:
    """By producer id: the partitions of which it holds the last stable offset."""
    from barnabas.client import KafkaError

    found: dict[int, list[str]] = {}
    partitions = sorted({each for one in described for each in one.partitions})
    for tp in partitions[:PARTITIONS_MAX]:
        try:
            producers = await admin.describe_producers(tp, timeout_ms=500)
        except KafkaError:
            continue
        open_ones = [each for each in producers if each.transaction_start_offset >= 0]
        if open_ones:
            first = min(open_ones, key=lambda each: each.transaction_start_offset)
            place = f"{tp.topic}-{tp.partition} at offset {first.transaction_start_offset}"
            found.setdefault(first.producer_id, []).append(place)
    return found


def _open(transactions: list[TransactionDescription], holds: dict[int, list[str]], problem: str) -> list[str]:
    lines = []
    for each in transactions:
        since = f" since {clock(each.start_time_ms)}" if each.start_time_ms >= 0 else ""
        lines.append(
            f"  '{each.transactional_id}' (producer {each.producer_id} epoch {each.producer_epoch}) {each.state}{since}"
        )
        partitions = ", ".join(f"{tp.topic}-{tp.partition}" for tp in each.partitions)
        lines.append(f"    partitions: {partitions or 'none'}")
        if each.producer_id in holds:
            lines.append(f"    it holds the last stable offset back: {', '.join(holds[each.producer_id])}")
    if problem:
        lines.append(f"  unknown: {problem}")
    return lines or ["  none"]


FOLDER: Final = "kafka-traces"
NAME_CHARS_MAX: Final = 150
WRITE_S: Final = 60.0
VALUES_SHOWN: Final = 10


def add_to_report(item: pytest.Item, report: pytest.TestReport, seed: int) -> None:
    """Adds the section "kafka" to the report of a phase that has failed; writes the trace of the test if it is wanted."""
    wanted: str = item.config.getoption("--kafka-trace")
    lines = []
    if report.failed and report.when in ("setup", "call"):
        lines.append(failure_text(item.nodeid, seed))
    if wanted != "off":
        if report.when == "call" and (wanted == "on" or report.failed):
            lines += _traces(item, report, seed)
        elif report.when == "teardown":
            for _, history in _histories():
                history.begin_anew()
    text = "\n".join(filter(None, lines))
    if text:
        report.sections.append(("kafka", text))


def assertion_lines(left: list[bytes], right: list[bytes]) -> list[str]:
    """Tells which values of records differ, in the first line, as pytest's explanation of `left == right`."""
    extra, missing = Counter(left) - Counter(right), Counter(right) - Counter(left)
    told = [
        f"{what} on the left: {_values(found)}" for what, found in (("extra", extra), ("missing", missing)) if found
    ]
    if not told:
        first = next(index for index, (one, two) in enumerate(zip(left, right, strict=True)) if one != two)
        told = [f"other order from index {first}: {left[first]!r}, {right[first]!r}"]
    return [f"records == records; {'; '.join(told)}", f"left:  {left!r}", f"right: {right!r}"]


def _values(found: Counter[bytes]) -> str:
    values = [f"{value!r}{f' {count} times' if count > 1 else ''}" for value, count in found.items()]
    more = f" and {len(values) - VALUES_SHOWN} more" if len(values) > VALUES_SHOWN else ""
    return ", ".join(values[:VALUES_SHOWN]) + more


def _histories() -> list[tuple[Cluster, History]]:
    found = [(each, each.noted()) for each in kit_thread.kept() if isinstance(each, Cluster)]
    return [(handle, history) for handle, history in found if history is not None and history.level == "all"]


def _traces(item: pytest.Item, report: pytest.TestReport, seed: int) -> list[str]:
    """Writes a file for each Kafka that the test has used; returns a line for each."""
    lines: list[str] = []
    for handle, history in _histories():
        if not history.used:
            continue
        name = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")[-NAME_CHARS_MAX:]
        folder = item.config.invocation_params.dir / FOLDER
        path = folder / f"{name}{f'-{len(lines) + 1}' if lines else ''}{SUFFIX}"
        header = {
            "barnabas": __version__,
            "test": item.nodeid,
            "outcome": report.outcome,
            "seed": seed,
            "written_ms": SystemClock().now_ms(),
            "brokers": len(handle.backend("trace").broker_ids),
        }
        lines.append(_written(handle, history, path, header))
    return lines


def _written(handle: Cluster, history: History, path: Path, header: dict[str, object]) -> str:
    try:
        kit_thread.wait(history.write(path, header), WRITE_S)
    except (OSError, KitError) as error:
        return f"trace {path} was not written: {error}"
    return f"trace: {path}"
