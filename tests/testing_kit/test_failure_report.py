"""The section "kafka" in the report of a failed test, and `--kafka-trace`, in pytest runs of their own."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from barnabas.testing import KitError
from barnabas.testing.history.core.events import KINDS, HistoryEvent, Produced
from barnabas.testing.history.trace import read_trace
from tests.support.pytest_runs import ROOT, plugin
from tests.support.snippets import snippets

pytest_plugins = ("pytester",)
__all__ = ["plugin"]

OPEN_TRANSACTION = """
    import pytest
    from tests.support.oracle.wire import Wire
    from barnabas.client import Producer

    @pytest.mark.kafka(brokers={brokers}, topics={{"orders": 1}}, isolation="{isolation}")
    def test_stuck(kafka, make_kafka_producer):
        producer = make_kafka_producer(client_id="billing", transactional_id="orders-7")
        kafka.faults.on("EndTxn", strict=False).error("COORDINATOR_NOT_AVAILABLE")
        kafka.faults.on("Produce").error("NOT_LEADER_OR_FOLLOWER")
        producer._begin()  # `transaction()` would end it when the collector finds it, in a later test
        producer.send("orders", b"tea")
        {then}
        assert False, "the application is stuck"
"""


def section(shown: str) -> str:
    found = re.search(r"-{5,} kafka -{5,}\n(.*?)\n(?:-{5,}|={5,})", shown, re.DOTALL)
    assert found, shown
    return found.group(1)


def test_a_failed_test_tells_what_its_kafka_did(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OPEN_TRANSACTION.format(brokers=1, isolation="cluster", then="pass"))
    result = pytester.runpytest_inprocess("--kafka-seed=42")
    result.assert_outcomes(failed=1)
    text = section(result.stdout.str())
    assert "client 'billing' from 127.0.0.1:" in text
    assert re.search(r"InitProducerId +orders-7 +producer \d+ epoch 0", text)
    assert re.search(r"Produce +orders-0 +NOT_LEADER_OR_FOLLOWER", text)
    assert re.search(r"Produce +orders-0 offset 0 +ok", text)
    assert re.search(r"'orders-7' \(producer \d+ epoch 0\) Ongoing since \d\d:\d\d:\d\d\.\d{3}", text)
    assert "it holds the last stable offset back: orders-0 at offset 0" in text
    assert re.search(r"faults that fired\n +.*Produce.*: 1 hit", text)
    assert "pytest 'test_a_failed_test_tells_what_its_kafka_did.py::test_stuck' --kafka-seed=42" in text
    assert max(map(len, text.splitlines())) <= 140


@pytest.mark.process
@pytest.mark.parametrize("isolation", ["cluster", "process"])
def test_a_dead_broker_still_has_its_last_requests(pytester: pytest.Pytester, isolation: str) -> None:
    pytester.makepyfile(OPEN_TRANSACTION.format(brokers=1, isolation=isolation, then="kafka.kill(1)"))
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    text = section(result.stdout.str())
    assert "broker 1 is down" in text
    assert re.search(r"Produce +orders-0 offset 0 +ok", text)
    assert "unknown: no broker of this cluster runs" in text


def test_a_test_that_passes_and_one_without_kafka_say_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_good(kafka, kafka_topic, kafka_producer):
            kafka_producer.send(kafka_topic, b"tea")

        def test_without():
            assert False

        def test_unused(kafka):
            assert False
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=2)
    assert "- kafka -" not in result.stdout.str()


def test_what_is_stuck_comes_first(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every client has room: many connections of one do not hide the others."""
    monkeypatch.setattr("barnabas.testing.clients.CLOSE_S", 0.1)  # of the producer whose request is held
    pytester.makepyfile(
        """
        import asyncio
        from tests.support.oracle.wire import Wire

        def test_it(kafka, kafka_topics, make_kafka_producer):
            orders = kafka_topics("orders")
            producer = make_kafka_producer(client_id="billing", transactional_id="orders-7")
            producer._begin()  # as above
            producer.send(orders, b"tea")
            waiting = make_kafka_producer(client_id="waiting")
            kafka.faults.on("Produce", client="waiting").hold()
            held = kafka.faults.all()[-1]
            work = asyncio.run_coroutine_threadsafe(waiting.aio._client.send_and_wait(orders, b"tea"), loop())
            held.wait(timeout=60)
            for number in range(20):
                with Wire(kafka.broker(1).address, client_id="reader") as wire:
                    wire.produce(9, orders, 0, [b"x"])
            assert False

        def loop():
            from barnabas.testing import kit_thread
            return kit_thread.loop_thread()._loop
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    text = section(result.stdout.str())
    clients = re.findall(r"^  client '(\w+)' from", text, re.MULTILINE)
    assert list(dict.fromkeys(clients)) == ["billing", "waiting", "reader"]
    assert re.search(r"^  \(1\d further connections of client 'reader' left out\)$", text, re.MULTILINE)
    assert text.index("open transactions") < text.index("last requests of each client")


def test_a_comparison_names_the_records(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("found", [[b"0", b"0", b"2", b"3"], [b"1", b"0", b"2"], [b"0", b"1", b"2", b"2", b"2"]])
        def test_it(kafka, found):
            assert found == [b"0", b"1", b"2"]
        """
    )
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(
        [
            "E       AssertionError: assert records == records; extra on the left: b'0', b'3'; missing on the left: b'1'",
            "E         left:  [[]b'0', b'0', b'2', b'3']",
            "E       AssertionError: assert records == records; other order from index 0: b'1', b'0'",
            "E       AssertionError: assert records == records; extra on the left: b'2' 2 times",
        ]
    )


TWO_TESTS = """
    def test_good(kafka, kafka_topics, kafka_producer):
        kafka_producer.send(kafka_topics("good"), b"tea")

    def test_bad(kafka, kafka_topics, kafka_producer):
        kafka_producer.send(kafka_topics("bad"), b"tea")
        assert False
"""


@pytest.mark.parametrize(
    ("option", "names"), [("on", ["test_bad", "test_good"]), ("retain-on-failure", ["test_bad"]), ("off", [])]
)
def test_traces_are_kept_as_the_option_says(pytester: pytest.Pytester, option: str, names: list[str]) -> None:
    pytester.makepyfile(test_it=TWO_TESTS)
    result = pytester.runpytest_inprocess(f"--kafka-trace={option}")
    result.assert_outcomes(passed=1, failed=1)
    found = sorted((pytester.path / "kafka-traces").glob("*.kafkatrace"))
    assert [each.name for each in found] == [f"test_it.py-{name}.kafkatrace" for name in names]
    assert ("trace: " in result.stdout.str()) == bool(names)
    for path, name in zip(found, names, strict=True):
        trace = read_trace(path)
        assert trace.header["test"] == f"test_it.py::{name}"
        assert trace.header["outcome"] == ("failed" if name == "test_bad" else "passed")
        assert trace.left_out == 0
        assert {each.topic for each in trace.events if isinstance(each, Produced)} == {name.removeprefix("test_")}


def test_a_wrong_option_names_the_choices(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--kafka-trace=always")
    assert "retain-on-failure" in result.stderr.str()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"hello\n", "its first line is not a header"),
        (b"\xff\xfe\n", "it is not text"),
        (b'{"format":"kafkatrace","version":2}\n', "version 2 of the format, and this program reads version 1"),
        (b'{"format":"kafkatrace","version":1}\n{"kind":"produce"}\n', "line 2: produce: topic is missing"),
        (b'{"format":"kafkatrace","version":1}\n[]\n', "line 2"),
        (b'{"format":"kafkatrace","version":1}\n{"kind":"closed","client":3}\n', "client is 3, not str"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "x.kafkatrace"
    path.write_bytes(content)
    with pytest.raises(KitError, match=re.escape(problem)):
        read_trace(path)


def test_a_trace_that_was_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.kafkatrace"
    path.write_text('{"format":"kafkatrace","version":1}\n{"kind":"closed"}\n{"kind":"clo')
    trace = read_trace(path)
    assert (len(trace.events), trace.left_out) == (1, -1)


def test_the_page_about_the_format_shows_a_trace_that_can_be_read(tmp_path: Path) -> None:
    (shown,) = snippets(ROOT / "docs" / "testing" / "trace-format.md", "json")
    (tmp_path / "shown.kafkatrace").write_text(shown)
    trace = read_trace(tmp_path / "shown.kafkatrace")
    assert [each.kind for each in trace.events] == ["end_txn"]


def test_the_page_about_the_format_has_every_kind_and_field() -> None:
    text = (ROOT / "docs" / "testing" / "trace-format.md").read_text()
    common = {each.name for each in fields(HistoryEvent)}
    for kind, cls in KINDS.items():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{kind}` |")), "")
        assert {each.name for each in fields(cls)} - common == set(re.findall(r"`(\w+)`", row.partition("` |")[2])), (
            kind
        )
    described = text.partition("Each event has ")[2].partition("\n")[0]
    assert common <= set(re.findall(r"`(\w+)`", described))
