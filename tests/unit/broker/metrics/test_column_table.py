"""Tables that are read column by column: what is written again, rows that come and go, lines of a second table."""

from __future__ import annotations

import random

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from barnabas.broker.metrics.column_table import ColumnTable
from barnabas.broker.metrics.line_table import PAGE_ROWS, LineTable, Series, labels_text, partition_labels
from barnabas.work import UNITS_PER_SLICE, finished

SERIES = (Series("t_size", "gauge", "Bytes."), Series("t_in_total", "counter", "Records."))


def labels(topic: str) -> str:
    return labels_text(topic=topic)


def pieces(one: ColumnTable[str], *, openmetrics: bool = False) -> list[bytes]:
    out: list[bytes] = []
    finished(one.written(out, openmetrics=openmetrics))
    return out


def samples(one: ColumnTable[str]) -> dict[tuple[str, str], float]:
    found = {}
    for openmetrics, parse in ((False, parse_text), (True, parse_openmetrics)):
        text = b"".join(pieces(one, openmetrics=openmetrics)).decode() + ("# EOF\n" if openmetrics else "")
        families = list(parse(text))
        assert len({family.name for family in families}) == len(families)
        read = [((each.name, each.labels["topic"]), each.value) for family in families for each in family.samples]
        found[openmetrics] = dict(read)
        assert len(found[openmetrics]) == len(read)
    assert found[True] == found[False]
    return found[True]


def bring(one: ColumnTable[str], values: dict[str, tuple[int, int]]) -> None:
    for _ in one.follow(list(values)):
        pass
    for page in one.pages:
        for number in range(len(SERIES)):
            page.put(number, [values[key][number] for key in page.keys])


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_are_all_shown(seed: int) -> None:
    draw = random.Random(seed)
    one, model = ColumnTable(SERIES, labels), dict[str, tuple[int, int]]()
    for _ in range(25):
        for _ in range(draw.randrange(200)):
            key = f"t{draw.randrange(5 * PAGE_ROWS)}%d"
            if draw.random() < 0.4:
                model.pop(key, None)
            else:
                model[key] = (draw.randrange(-1, 3), draw.randrange(3))
        if draw.random() < 0.1:
            model.clear()
        bring(one, model)
        assert samples(one) == {
            (series.name, key): value
            for key, values in model.items()
            for series, value in zip(SERIES, values, strict=True)
        }
        assert len(one) == len(model)


def test_a_page_is_made_again_only_if_a_value_or_a_row_has_changed() -> None:
    one = ColumnTable(SERIES, labels)
    values = {f"t{number}": (number, 1) for number in range(3 * PAGE_ROWS)}
    bring(one, values)
    first = pieces(one)
    bring(one, values)
    assert all(was is now for was, now in zip(first, pieces(one), strict=True) if not was.startswith(b"#"))
    bring(one, values | {"t1": (9, 1)})
    second = pieces(one)
    assert [was is not now for was, now in zip(first, second, strict=True) if not was.startswith(b"#")].count(True) == 1
    known = [page for page in one.pages if page.known is None]
    assert len(known) == 3
    for page in one.pages:
        page.known = "noted"
    del values["t1"]
    bring(one, values)
    assert [page.known for page in one.pages] == [None, "noted", "noted"]


def test_the_lines_of_other_rows_follow_those_of_the_table() -> None:
    others: LineTable[tuple[str, int]] = LineTable(SERIES, lambda key: labels(key[0]))
    one = ColumnTable(SERIES, labels, others)
    assert pieces(one) == []
    others.put(("other", 0), (None, 5))
    assert samples(one) == {("t_in_total", "other"): 5}
    bring(one, {"here": (1, 2)})
    assert samples(one) == {("t_size", "here"): 1, ("t_in_total", "here"): 2, ("t_in_total", "other"): 5}


def test_rows_and_text_are_made_in_slices() -> None:
    one = ColumnTable(SERIES, labels)
    values = {f"t{number}": (number, 1) for number in range(20 * PAGE_ROWS)}
    assert sum(1 for _ in one.follow(list(values))) >= 4
    bring(one, values)
    steps = list(one.written([], openmetrics=False))
    assert all(isinstance(step, int) and step < UNITS_PER_SLICE for step in steps)
    assert sum(step for step in steps if isinstance(step, int)) >= 2 * 20


@pytest.mark.parametrize("topic", ["orders", 'a"b', "back\\slash", "line\nfeed", "\ud800", "100%"])
def test_labels_of_partitions_are_those_of_any_row(topic: str) -> None:
    assert partition_labels(topic, 7) == labels_text(topic=topic, partition="7")
