"""Compares committed inputs with committed outputs and explains differences. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from barnabas.testing.errors import KitError
from barnabas.testing.history.core.describe import or_null, text
from barnabas.testing.history.core.evidence import Evidence, clock
from barnabas.testing.history.core.group_checks import GroupCommits, committed
from barnabas.testing.history.core.read_checks import delivered
from barnabas.testing.history.core.write_checks import acknowledged

SHOWN_MAX: Final = 5  # records of each kind
STORY_MAX: Final = 4  # sentences of each kind about one record


class CommittedRecord(NamedTuple):
    """A record that readers under read_committed get. `timestamp_ms` is in milliseconds since the Unix epoch."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = -1
    headers: Sequence[tuple[str, bytes | None]] = ()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset} ({or_null(text(self.key))}: {or_null(text(self.value))})"


Key = Callable[[CommittedRecord], Hashable]


def differences(
    inputs: Sequence[CommittedRecord],
    outputs: Sequence[CommittedRecord],
    key: Key,
    evidence: Evidence,
    commits: GroupCommits,
) -> str:
    """The text for records that have no output, or more than one, or outputs without input; "" if all agree.

    Raises KitError: `key` fails for a record, or its value cannot be compared.
    """
    wanted, found = _by_key(inputs, key), _by_key(outputs, key)
    missing = [each for name, records in wanted.items() for each in records[len(found.get(name, ())) :]]
    repeated = [(records, found[name]) for name, records in wanted.items() if len(found.get(name, ())) > len(records)]
    foreign = [each for name, records in found.items() if name not in wanted for each in records]
    lines = []
    if missing:
        lines.append(f"{_count(len(missing), 'input has', 'inputs have')} no output:")
        for each in missing[:SHOWN_MAX]:
            lines += [f"  {each}", *(f"    - {line}" for line in _story_of_input(each, evidence, commits))]
    if repeated:
        lines.append(f"{_count(len(repeated), 'input has', 'inputs have')} more than one output:")
        for given, made in repeated[:SHOWN_MAX]:
            lines.append(f"  {given[0]}")
            lines += [f"    - {line}" for each in made[:SHOWN_MAX] for line in _story_of_output(each, evidence)]
    if foreign:
        lines.append(f"{_count(len(foreign), 'output has', 'outputs have')} no input:")
        for each in foreign[:SHOWN_MAX]:
            lines += [f"    - {line}" for line in _story_of_output(each, evidence)]
    return "\n".join(lines)


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _by_key(records: Sequence[CommittedRecord], key: Key) -> dict[Hashable, list[CommittedRecord]]:
    found: dict[Hashable, list[CommittedRecord]] = defaultdict(list)
    for each in records:
        try:
            found[key(each)].append(each)
        except Exception as error:
            raise KitError(f"key({each}) failed: {type(error).__name__}: {error}") from error
    return dict(found)


def _story_of_input(record: CommittedRecord, evidence: Evidence, commits: GroupCommits) -> list[str]:
    got = [
        each
        for each in evidence.delivered.get((record.topic, record.partition), ())
        if each.first_offset <= record.offset <= each.last_offset
    ]
    story = [delivered(each) for each in got[:STORY_MAX]] or ["no broker has delivered it to a client"]
    for (_, topic, partition), accepted in commits.items():
        passed = next((each for each in accepted if each[1] > record.offset), None)
        if (topic, partition) == (record.topic, record.partition) and passed is not None:
            event, offset = passed
            story.append(committed(event, topic, partition, offset))
    return story


def _story_of_output(record: CommittedRecord, evidence: Evidence) -> list[str]:
    made = next(
        (
            each
            for each in evidence.produced.get((record.topic, record.partition), ())
            if not each.error and each.base_offset <= record.offset <= each.last_offset
        ),
        None,
    )
    if made is None:
        return [f"{record}, written at {clock(record.timestamp_ms)} before the history began, or by another program"]
    txn = f", in a transaction of '{made.transactional_id}'" if made.transactional else ", without a transaction"
    return [f"{record}: {acknowledged(made)}{txn}"]
