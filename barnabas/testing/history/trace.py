"""`.kafkatrace` files: the history of one test as JSON lines; docs/testing/trace-format.md describes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.testing.errors import KitError
from barnabas.testing.history.core.events import KINDS, HistoryEvent, event_of
from barnabas.testing.history.core.final_state import FinalState, TransactionStep

FORMAT: Final = "kafkatrace"
VERSION: Final = 1
SUFFIX: Final = ".kafkatrace"
BYTES_MAX: Final = 64 * 1024 * 1024
LINE_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class HeldMarker:
    """The end of a transaction in one partition. `outcome` is "commit" or "abort"."""

    topic: str
    partition: int
    offset: int
    producer_id: int
    producer_epoch: int
    outcome: str
    at_ms: int


@dataclass(frozen=True)
class KafkaTrace:
    """What a file has.

    Attributes:
        header: its first line.
        left_out: how many events had no room in the file, or −1 if the file was cut off.
    """

    header: Mapping[str, Any]
    events: tuple[HistoryEvent, ...]
    steps: tuple[TransactionStep, ...]
    markers: tuple[HeldMarker, ...]
    left_out: int


def markers_of(state: FinalState) -> list[HeldMarker]:
    """The markers in the logs, by time."""
    found = [
        HeldMarker(
            log.topic, log.partition, each.base_offset, each.producer_id, each.producer_epoch, each.marker, each.at_ms
        )
        for log in state.logs.values()
        for each in log.batches
        if each.marker
    ]
    return sorted(found, key=lambda each: (each.at_ms, each.topic, each.partition))


def write_trace(
    path: Path, header: Mapping[str, Any], events: Iterable[HistoryEvent], state: FinalState, bytes_max: int = BYTES_MAX
) -> None:
    """Writes a file, and its directory if there is none. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: list[Mapping[str, Any]] = [
        *({"kind": "step", **each._asdict()} for each in state.steps),
        *({"kind": "marker", **vars(each)} for each in markers_of(state)),
    ]
    with path.open("w", encoding="utf-8") as file:
        size = file.write(_line({"format": FORMAT, "version": VERSION, **header}))
        left_out = 0
        for value in (*(each.to_json() for each in events), *lines):
            line = _line(value)
            if size + len(line) > bytes_max:
                left_out += 1
            else:
                size += file.write(line)
        file.write(_line({"kind": "end", "left_out": left_out}))


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def read_trace(path: Path) -> KafkaTrace:
    """Reads a file. Raises KitError: it cannot be read, or is no trace of this format; the text says what it is and what would be right."""
    try:
        with path.open(encoding="utf-8") as file:
            return _read(path, file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise KitError(f"{path} cannot be read: {why}") from error


def _read(path: Path, file: Any) -> KafkaTrace:
    header = _header(path, file.readline(LINE_BYTES_MAX))
    events: list[HistoryEvent] = []
    steps: list[TransactionStep] = []
    markers: list[HeldMarker] = []
    number, left_out = 1, -1
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        try:
            value = json.loads(line)
            kind = value["kind"]
            if kind in KINDS:
                events.append(event_of(value))
            elif kind == "step":
                steps.append(_step(value))
            elif kind == "marker":
                markers.append(HeldMarker(**{name: value[name] for name in HeldMarker.__dataclass_fields__}))
            elif kind == "end":
                left_out = int(value["left_out"])
        except (ValueError, KeyError, TypeError) as error:
            if not line.endswith("\n"):  # the file was cut off
                break
            raise KitError(f"{path}, line {number}: {error}: this line is no event of a {FORMAT}") from error
    return KafkaTrace(header, tuple(events), tuple(steps), tuple(markers), left_out)


def _header(path: Path, line: str) -> dict[str, Any]:
    if not line.strip():
        raise KitError(f"{path} is empty: pytest writes traces with --kafka-trace=on")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise KitError(
            f"{path} is no {FORMAT}: its first line is not a header. pytest writes traces with --kafka-trace=on"
        )
    if header.get("version") != VERSION:
        raise KitError(
            f"{path} has version {header.get('version')!r} of the format, and this program reads version {VERSION}"
        )
    return header


def _step(value: Mapping[str, Any]) -> TransactionStep:
    given = {name: value[name] for name in TransactionStep._fields}
    given["partitions"] = tuple((str(topic), int(number)) for topic, number in given["partitions"])
    return TransactionStep(**given)
