"""Keyed deadlines that are moved on far more often than they pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.coordinator.host.deadlines import Deadlines


def due(deadlines: Deadlines[str], now_ms: int) -> list[str]:
    found = []
    while (key := deadlines.pop(now_ms)) is not None:
        found.append(key)
    return found


def test_keys_come_when_due_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("b", 20)
    deadlines.set("a", 10)
    assert due(deadlines, 9) == []
    assert due(deadlines, 25) == ["a", "b"]
    assert due(deadlines, 99) == []
    assert deadlines.earliest_ms() is None


def test_moved_and_cancelled() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 30)  # later
    deadlines.set("b", 40)
    deadlines.set("b", 15)  # earlier
    deadlines.set("c", 12)
    deadlines.cancel("c")
    assert due(deadlines, 14) == []
    assert due(deadlines, 15) == ["b"]
    assert due(deadlines, 29) == []
    assert due(deadlines, 30) == ["a"]
    deadlines.set("b", 50)
    assert deadlines.get("b") == 50
    assert due(deadlines, 50) == ["b"]


def test_moving_on_costs_no_heap_entry() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now_ms in range(100_000):
        deadlines.set("member", now_ms + 45_000)
    assert len(deadlines._heap) == 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.integers(0, 50)),
            st.tuples(st.sampled_from("abc"), st.none()),
            st.tuples(st.none(), st.integers(0, 9)),
        )
    )
)
def test_against_a_plain_dictionary(steps: list[tuple[str | None, int | None]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    now_ms = 0
    for key, number in steps:
        if key is None:
            now_ms += number or 0
            expected = sorted(name for name, deadline in model.items() if deadline <= now_ms)
            assert sorted(due(deadlines, now_ms)) == expected
            for name in expected:
                del model[name]
        elif number is None:
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            deadlines.set(key, now_ms + number)
            model[key] = now_ms + number
        earliest = deadlines.earliest_ms()
        if model:
            assert earliest is not None
            assert earliest <= min(model.values())
        else:
            assert earliest is None
