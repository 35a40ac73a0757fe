"""The flights pipeline without Spark: its data, its story, its figures and its page."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import date
from pathlib import Path

import pytest

from examples.demo.flights import dataset as data
from examples.demo.flights.figures import Check, checks
from examples.demo.flights.page import summary, write_page
from examples.demo.flights.replay import _may_send
from examples.demo.flights.story import MicroBatch, ReplayedDay, Story
from tests.support.browser import seen_in_browser
from tests.support.flights import january

__all__ = ["january"]


def test_days_come_in_order_with_all_rows(january: data.Dataset) -> None:
    assert [day.day for day in january.days] == [date(2013, 1, n) for n in range(1, 32)]
    times = [event.timestamp_ms for day in january.days for event in day.events]
    assert times == sorted(times)
    assert len(times) == len(january.flights) + len(january.weather) == 26_865 + 2_211
    assert all(event.timestamp_ms > times[-1] for event in january.closing)
    row = january.days[0].events[-1].value.decode()
    assert row.count(",") in (18, 14), "a row of one of the two files"


def test_an_airline_with_a_comma_in_its_name_is_quoted() -> None:
    event = data._event(data.AIRLINES, "XX", {"carrier": "XX", "name": "Wings, Inc."}, 0)
    assert event.value == b'XX,"Wings, Inc."'


def figures_of(dataset: data.Dataset, **changed: list[dict[str, object]]) -> dict[str, Check]:
    expected = data.compute_expected(dataset)
    hours, carriers = list(expected.hours.values()), list(expected.carriers.values())
    by_hour = {"topic": changed.get("topic", hours), "Parquet": hours}
    found = checks(dataset, expected, by_hour, {"topic": carriers, "Parquet": carriers}, open_=0)
    return {check.what: check for check in found}


def test_figures_hold_for_what_is_right(january: data.Dataset) -> None:
    found = figures_of(january)
    assert all(check.holds for check in found.values())
    assert found["flights in, topic"].found == 26_865
    assert found["flights without departure, topic"].found == 512


def test_figures_do_not_hold_for_what_is_doubled_lost_or_changed(january: data.Dataset) -> None:
    right = list(data.compute_expected(january).hours.values())
    changed = [*right[:-1], right[-1] | {"delay": 7_777}]
    for rows, wrong in (
        ([*right, right[5]], {"flights in, topic", "rows too many by hour, topic"}),
        (right[1:], {"flights in, topic", "right rows by hour, topic"}),
        (changed, {"right rows by hour, topic", "rows too many by hour, topic"}),
    ):
        found = figures_of(january, topic=rows)
        assert wrong <= {what for what, check in found.items() if not check.holds}


def batch(query: str, begin_s: float, end_s: float, until: str = "2013-01-05T00:00:00.000Z") -> MicroBatch:
    return MicroBatch(query, 0, begin_s, end_s, 10, until, "", 0)


def test_a_kill_is_recovered_from_when_every_query_has_done_a_batch_that_began_after_it() -> None:
    story = Story(("a", "b"))
    story.on_kill("the driver", "pid 1")
    kill = story.kills[0]
    story.on_batch(batch("a", kill.at_s - 1, kill.at_s + 1))
    story.on_batch(batch("a", kill.at_s + 1, kill.at_s + 2))
    assert kill.back_s is None
    story.on_batch(batch("b", kill.at_s + 1, kill.at_s + 4))
    assert kill.back_s == kill.at_s + 4


def test_the_replay_waits_for_the_slower_query() -> None:
    story = Story(("a", "b"))
    first = date(2013, 1, 1)
    assert _may_send(date(2013, 1, 28), first, story)
    assert not _may_send(date(2013, 1, 29), first, story)
    story.on_batch(batch("a", 0, 1, "2013-01-28T23:00:00.000Z"))
    assert not _may_send(date(2013, 1, 29), first, story), "b has read nothing yet"
    story.on_batch(batch("b", 0, 1, "2013-01-10T23:00:00.000Z"))
    assert _may_send(date(2013, 2, 6), first, story)
    assert not _may_send(date(2013, 2, 7), first, story)


def test_a_query_that_has_come_to_its_end_has_nothing_to_recover() -> None:
    story = Story(("a", "b"))
    story.on_end("a", 1.0)
    story.on_kill("a broker", "1")
    kill = story.kills[0]
    story.on_batch(batch("b", kill.at_s + 1, kill.at_s + 3))
    assert kill.back_s == kill.at_s + 3
    story.on_kill("the driver", "pid 1")
    story.on_end("b", story.now_s + 9)
    assert story.kills[1].back_s is not None


def test_the_replay_goes_on_after_a_driver_that_died_before_it_reported_its_last_batch() -> None:
    story = Story(("a", "b"))
    first = date(2013, 1, 1)
    for number in range(1, 29):
        story.transactions.append(ReplayedDay(f"2013-01-{number:02}", 1, number, number + 0.5, committed=number != 27))
    story.on_batch(batch("a", 0, 1, "2013-01-28T23:00:00.000Z"))
    assert not _may_send(date(2013, 1, 29), first, story)
    story.on_idle("b", 28.2)  # without the day that is being committed
    assert story.read_until() == "2013-01-26"
    story.on_idle("b", 40)
    assert story.read_until() == "2013-01-28"
    assert _may_send(date(2013, 2, 24), first, story)


async def test_whoever_waits_for_the_story_is_woken_by_a_batch() -> None:
    story = Story(("a",))
    waiting = asyncio.ensure_future(story.until(lambda: story.read_until() > "2013"))
    await asyncio.sleep(0)
    assert not waiting.done()
    story.on_batch(batch("a", 0, 1))
    await asyncio.wait_for(waiting, 60)


def test_the_page_has_everything_in_itself(january: data.Dataset, tmp_path: Path) -> None:
    expected = data.compute_expected(january)
    story = Story(("by hour", "by carrier"))
    story.transactions.append(ReplayedDay("</script>", 1, 0.0, 1.0, True))
    page = tmp_path / "made" / "page.html"
    hours, carriers = list(expected.hours.values()), list(expected.carriers.values())
    write_page(page, story, [Check("flights in, topic", 1, 1)], hours, carriers)
    text = page.read_text()
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text), "nothing is loaded from elsewhere"
    assert text.count("</script>") == 1
    found = re.search(r"^const data = (\{.*\});$", text, re.MULTILINE)
    assert found is not None
    drawn = json.loads(found.group(1))
    assert drawn["total"]["flights"] == 26_865
    assert drawn["story"]["transactions"][0]["day"] == "</script>"


LOOK = """page => ({
    wide: page.documentElement.scrollWidth,
    charts: [...page.querySelectorAll("svg")].map(svg => svg.querySelectorAll("rect, path, circle").length),
    verdict: page.getElementById("verdict").textContent,
    rows: page.querySelectorAll("#checks tr").length,
    footer: page.getElementById("footer").textContent.length,
    cut: [...page.querySelectorAll(".tile b, h1, h2, .verdict")].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent),
})"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_phone_and_a_desk(january: data.Dataset, tmp_path: Path, width: int) -> None:
    expected = data.compute_expected(january)
    story = Story(("by hour", "by carrier"))
    story.transactions += [ReplayedDay("2013-01-01", 9, 0.0, 1.0, True), ReplayedDay("2013-01-02", 9, 1.0, 2.0, False)]
    for query in story.queries:
        story.on_batch(batch(query, 0.5, 2.5))
    story.on_kill("the broker that leads the results", "pid 1")
    page = tmp_path / "page.html"
    hours, carriers = list(expected.hours.values()), list(expected.carriers.values())
    write_page(page, story, [Check("flights in, topic", 26_865, 26_865)], hours, carriers)
    seen = seen_in_browser(page, width, LOOK)
    assert seen["wide"] <= width, "the page scrolls sideways"
    assert len(seen["charts"]) == 6
    assert all(seen["charts"]), "an empty chart"
    assert seen["verdict"] == "✓ all 1 figures hold"
    assert seen["rows"] == 2
    assert seen["footer"] > 0, "the script did not come to its end"
    assert seen["cut"] == []


def test_a_summary_is_by_the_clocks_of_new_york() -> None:
    row = {"origin": "JFK", "flights": 2, "cancelled": 1, "delay": 30, "temp": None}
    row |= {"visib": 0.5, "precip": None, "wind_speed": 10.0}
    hours = [row | {"hour": "2013-01-02T04:00:00Z"}, row | {"hour": "2013-07-02T04:00:00Z"}]
    drawn = summary(hours, [])
    assert list(drawn["days"]) == ["2013-01-01", "2013-07-02"]
    assert drawn["clock"] == {
        "JFK 0": {"flights": 2, "cancelled": 1, "mean": 30.0},
        "JFK 23": {"flights": 2, "cancelled": 1, "mean": 30.0},
    }
    assert drawn["weather"]["Visibility"] == {"under 1 mile": {"flights": 4, "cancelled": 2, "mean": 30.0}}
    assert drawn["weather"]["Rain"] == {}
    assert list(drawn["weather"]["Wind"]) == ["10 to 20"]
