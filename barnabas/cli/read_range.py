"""Which offsets `consume` reads: where each partition begins and ends.

`--offset` and `--since` say where to begin, `--until` and `--exit-at-end` where to end. The offsets are looked up once, at the
start; the end of now counts control records and, with read_committed, stops at the last stable offset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from barnabas.cli.arguments import time_argument
from barnabas.cli.client_properties import WrongCall
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.types import TopicPartition

Edge = Literal["earliest", "latest"]


@dataclass(frozen=True)
class Range:
    """Where to begin and to end, in each partition.

    Attributes:
        begin: "earliest", "latest", an offset, or (negative) a number of offsets before the end.
        since: begin at the first record at or after this time in ms, instead of at `begin`.
        until: end before the first record at or after this time in ms.
        at_end: end at the end of now.
    """

    begin: Edge | int = "latest"
    since: int | None = None
    until: int | None = None
    at_end: bool = False

    @property
    def only_new(self) -> bool:
        """Whether it begins at records that are not written yet."""
        return self.begin == "latest" and self.since is None

    async def starts(
        self, consumer: Consumer[Any, Any], partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """The first offset of each partition to read."""
        if self.since is not None:
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, self.since))
            ends = await consumer.end_offsets(partitions)
            return {tp: ends[tp] if (at := found[tp]) is None else at.offset for tp in partitions}
        if self.begin == "latest":
            return await consumer.end_offsets(partitions)
        earliest = await consumer.beginning_offsets(partitions)
        if self.begin == "earliest":
            return earliest
        ends = await consumer.end_offsets(partitions)
        wanted = {tp: self.begin if self.begin >= 0 else ends[tp] + self.begin for tp in partitions}
        return {tp: min(max(wanted[tp], earliest[tp]), ends[tp]) for tp in partitions}

    async def ends(
        self, consumer: Consumer[Any, Any], partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int] | None:
        """The offset after the last one of each partition to read; None without an end."""
        if self.until is None and not self.at_end:
            return None
        ends = await consumer.end_offsets(partitions)
        if self.until is None:
            return ends
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, self.until))
        return {tp: ends[tp] if (at := found[tp]) is None else min(at.offset, ends[tp]) for tp in partitions}


def parse_range(
    *, offset: str | None, since: str | None, until: str | None, from_beginning: bool, exit_at_end: bool
) -> Range:
    """The range that the options say. Raises WrongCall: an option cannot be used, or two exclude each other."""
    given = [
        name
        for name, used in (("--from-beginning", from_beginning), ("--offset", offset), ("--since", since))
        if used not in (None, False)
    ]
    if len(given) > 1:
        raise WrongCall(f"{' and '.join(given)} exclude each other")
    now = time.time_ns() // 1_000_000
    since_ms = None if since is None else time_argument(since, "--since", now)
    until_ms = None if until is None else time_argument(until, "--until", now)
    if until_ms is not None and until_ms > now:
        raise WrongCall(f"--until {until}: that time has not come yet")
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise WrongCall("--until is before --since")
    begin = "earliest" if from_beginning or (until is not None and offset is None) else "latest"
    return Range(_begin(offset) if offset is not None else begin, since_ms, until_ms, exit_at_end)  # type: ignore[arg-type]  # begin is an Edge


def _begin(text: str) -> Edge | int:
    if text in ("earliest", "beginning"):
        return "earliest"
    if text in ("latest", "end"):
        return "latest"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19 and int(digits) < 1 << 63):
        raise WrongCall(f"--offset {text!r} is none of a number, -N before the end, earliest, latest")
    return int(text)
