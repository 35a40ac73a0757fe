"""Tables of lines: what is written again, rows that go, label values that need escapes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from barnabas.broker.metrics.line_table import PAGE_ROWS, LineTable, Series, labels_text
from barnabas.work import finished

SERIES = (Series("t_size", "gauge", "Bytes."), Series("t_in_total", "counter", "Records."))


def table() -> LineTable[str]:
    return LineTable(SERIES, lambda topic: labels_text(topic=topic))


def text(one: LineTable[str], *, openmetrics: bool = False) -> str:
    out: list[bytes] = []
    finished(one.written(out, openmetrics=openmetrics))
    return b"".join(out).decode()


def samples(one: LineTable[str]) -> dict[tuple[str, str], float]:
    parsed = {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in parse_text(text(one))
        for sample in family.samples
    }
    as_openmetrics = {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in parse_openmetrics(text(one, openmetrics=True) + "# EOF\n")  # type: ignore[no-untyped-call]  # it has no types
        for sample in family.samples
    }
    assert parsed == as_openmetrics
    return parsed


def test_random_changes_are_all_shown() -> None:
    draw = random.Random(7)
    one, model = table(), dict[str, tuple[float | None, float | None]]()
    for _ in range(60):
        for _ in range(draw.randrange(30)):
            key = f"t{draw.randrange(5 * PAGE_ROWS)}"
            if draw.random() < 0.4:
                one.drop(key)
                model.pop(key, None)
            else:
                model[key] = (draw.randrange(3), draw.choice([None, draw.randrange(3)]))
                one.put(key, model[key])
        assert samples(one) == {
            (series.name, key): value
            for key, values in model.items()
            for series, value in zip(SERIES, values, strict=True)
            if value is not None
        }
    assert len(one) == len(model)


def test_a_page_is_made_again_only_if_a_value_has_changed() -> None:
    one = table()
    for number in range(3 * PAGE_ROWS):
        one.put(f"t{number}", (number, 1))
    first: list[bytes] = []
    finished(one.written(first, openmetrics=False))
    one.put("t0", (0, 1))  # the same
    one.put("t1", (9, 1))
    second: list[bytes] = []
    finished(one.written(second, openmetrics=False))
    again = [number for number, (was, now) in enumerate(zip(first, second, strict=True)) if was is not now]
    headers = [number for number, piece in enumerate(second) if piece.startswith(b"#")]
    assert [number for number in again if number not in headers] == [1]


@given(st.text(min_size=1, max_size=20))
def test_any_label_value_comes_back(value: str) -> None:
    """A lone surrogate, which UTF-8 has not, becomes a question mark."""
    one = table()
    one.put(value, (1, 2))
    shown = value.encode("utf-8", "replace").decode()
    if any(each in shown for each in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        return  # prometheus_client's parser takes them for line ends; Prometheus itself does not
    assert samples(one) == {("t_size", shown): 1, ("t_in_total", shown): 2}
