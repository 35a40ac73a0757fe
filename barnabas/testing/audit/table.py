"""The audit's table: tests that fail under a disturbance, and disturbances that were not reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from barnabas.testing.audit.disturbances import DISTURBANCES

MarkedLine = tuple[str, dict[str, bool]]


class Outcome(NamedTuple):
    """Outcome of a test under one disturbance."""

    disturbance: str
    result: str  # "passed", "failed" or "skipped"
    done: list[str]  # a sentence for each disturbance; empty: not reached
    reason: str  # of a failure, or why the disturbance was not possible

    @property
    def failed(self) -> bool:
        return self.result == "failed"

    def __str__(self) -> str:
        if self.result == "skipped":
            return self.result
        if self.failed:
            return "FAILED" if self.done else "FAILED undisturbed"
        return "passed" if self.done else "not reached"


def audit_lines(outcomes: Mapping[str, list[Outcome]]) -> Iterator[MarkedLine]:
    """The table, the failures and a one-line summary."""
    if not outcomes:
        yield "no test has run under a disturbance: none that uses `kafka` has passed", {}
        return
    yield from _table(outcomes)
    yield from _failures(outcomes)
    fragile = sum(any(each.failed for each in found) for found in outcomes.values())
    reached = [each for found in outcomes.values() for each in found if each.done]
    of = sum(map(len, outcomes.values()))
    tests = "1 test" if len(outcomes) == 1 else f"{len(outcomes)} tests"
    passes = "1 passes" if fragile == 1 else f"{fragile} pass"
    text = f"{tests}: {passes} only without a disturbance; {len(reached)} of {of} disturbances were reached"
    yield text, {"red": True, "bold": True} if fragile else {"green": True}


def _table(outcomes: Mapping[str, list[Outcome]]) -> Iterator[MarkedLine]:
    width = max(len("test"), *map(len, outcomes))
    columns = {name: max(len(title), len("FAILED undisturbed")) for name, title in DISTURBANCES.items()}
    head = "  ".join(title.ljust(columns[name]) for name, title in DISTURBANCES.items())
    yield f"{'test'.ljust(width)}  {head}".rstrip(), {"bold": True}
    for test, found in outcomes.items():
        told = {each.disturbance: str(each) for each in found}
        row = "  ".join(told.get(name, "-").ljust(size) for name, size in columns.items())
        yield f"{test.ljust(width)}  {row}".rstrip(), {"red": True} if any(each.failed for each in found) else {}


def _failures(outcomes: Mapping[str, list[Outcome]]) -> Iterator[MarkedLine]:
    for test, found in outcomes.items():
        for each in found:
            if not each.failed and not each.reason:
                continue
            yield "", {}
            yield f"{test}, {DISTURBANCES[each.disturbance]}: {each.reason}", {"red": True}
            for sentence in each.done:
                yield f"  {sentence}", {}
            if each.failed:
                yield f"  to see it: pytest --kafka-disturb={each.disturbance} '{test}'", {}
    yield "", {}
