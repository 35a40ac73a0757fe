"""The audit, in pytest runs of its own: what it finds, its table, its exit status, and what is left after it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from barnabas.testing import Broker, KitError
from barnabas.testing.audit import disturbances, runs
from barnabas.testing.audit.disturbances import Auditor
from tests.support.oracle.wire import Wire
from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]

ALONE_S = disturbances.ALONE_S
SHORT = "from barnabas.testing.audit import disturbances, runs\ndisturbances.ALONE_S = 0.1\n"


@pytest.fixture(autouse=True)
def short(plugin: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of an application in each run, and brokers that are away for a moment only: the bundled client needs no more."""
    pytester.makeini(
        "[pytest]\naddopts = -p barnabas.testing.plugin -p tests.support.application_clients -p no:cacheprovider --strict-markers\n"
    )
    monkeypatch.setattr(disturbances, "ALONE_S", 0.1)
    monkeypatch.setattr(runs, "HANG_S", 1_000)  # its end would be the end of this process


def rows(run: pytest.RunResult) -> dict[str, list[str]]:
    """The table: name of a test → its outcomes under leader, coordinator, rebalance and redelivery."""
    start = next(number for number, line in enumerate(run.outlines) if line.startswith("test  "))
    found: dict[str, list[str]] = {}
    for line in run.outlines[start + 1 :]:
        if not line:
            return found
        test, *outcomes = [each for each in line.split("  ") if each]
        found[test.partition("::")[2]] = [each.strip() for each in outcomes]
    raise AssertionError(f"the table has no end: {run.outlines[start:]}")


COPY = """
    import pytest

    pytestmark = pytest.mark.kafka(topics={"in": 1, "out": 1})

    def fill(producer):
        for number in range(4):
            producer.send("in", b"%d" % number)

    class Copy:
        'Copies records from a topic to another one; each once, also if they are delivered again.'

        def __init__(self, producer, consumer, commit):
            self.producer, self.consumer, self.commit, self.seen = producer, consumer, commit, set()
            consumer.subscribe("in")

        def run(self, count):
            while len(self.seen) < count:
                [record] = self.consumer.take(1)
                if record.offset not in self.seen:
                    self.producer.send("out", record.value)
                    self.seen.add(record.offset)
                self.commit(self.consumer)

    def patient(consumer):
        from barnabas.client.errors import KafkaError
        try:
            consumer.commit()
        except KafkaError:
            pass  # the group has changed: what was not committed comes again

    def hasty(consumer):
        consumer.commit()

    def values(consumer, count):
        consumer.assign(("out", 0))
        return [each.value for each in consumer.take(count)]
"""

CORRECT = (
    COPY
    + """
    @pytest.mark.kafka(brokers=3)
    def test_correct(make_producer, make_consumer):
        producer = make_producer()
        fill(producer)
        Copy(producer, make_consumer(group_id="copy", auto_offset_reset="earliest"), patient).run(4)
        reader = make_consumer(auto_offset_reset="earliest")
        assert values(reader, 4) == [b"0", b"1", b"2", b"3"]
"""
)

HASTY = (
    COPY
    + """
    def test_commit_errors_are_not_expected(make_producer, make_consumer):
        producer = make_producer()
        fill(producer)
        Copy(producer, make_consumer(group_id="copy", auto_offset_reset="earliest"), hasty).run(4)
        reader = make_consumer(auto_offset_reset="earliest")
        assert values(reader, 4) == [b"0", b"1", b"2", b"3"]

    def test_retries_without_idempotence(make_producer, make_consumer):
        producer = make_producer(enable_idempotence=False)
        fill(producer)
        reader = make_consumer(auto_offset_reset="earliest")
        reader.assign(("in", 0))
        assert [each.value for each in reader.take(4)] == [b"0", b"1", b"2", b"3"]

    def test_fails(kafka, kafka_producer):
        kafka_producer.send("in", b"")
        assert kafka.topics() == []

    def test_without_kafka():
        pass

    @pytest.mark.kafka(audit=False)
    def test_left_out(kafka):
        pass

    def test_only_asks(kafka):
        assert kafka.topics() == ["in", "out"]
"""
)


def test_a_correct_application_is_all_green(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CORRECT)
    run = pytester.runpytest_inprocess("--kafka-audit-strict")
    run.assert_outcomes(passed=1)
    assert rows(run) == {"test_correct": ["passed"] * 4}
    run.stdout.fnmatch_lines(["1 test: 0 pass only without a disturbance; 4 of 4 disturbances were reached"])
    assert run.ret == pytest.ExitCode.OK


def test_what_passes_only_without_a_disturbance(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HASTY)
    run = pytester.runpytest_inprocess("--kafka-audit", "--junit-xml=report.xml")
    run.assert_outcomes(passed=5, failed=1)
    table = rows(run)
    assert table == {
        "test_commit_errors_are_not_expected": ["passed", "passed", "FAILED", "passed"],
        "test_retries_without_idempotence": ["FAILED", "not reached", "not reached", "FAILED"],
        "test_only_asks": ["not reached"] * 4,
    }
    run.stdout.fnmatch_lines(
        [
            "*::test_commit_errors_are_not_expected, rebalance: *UNKNOWN_MEMBER_ID*",
            "  member 'test-commit-errors-are-not-expected' of group '*' was evicted after Fetch in",
            "  to see it: pytest --kafka-disturb=rebalance '*::test_commit_errors_are_not_expected'",
            "3 tests: 2 pass only without a disturbance; 6 of 12 disturbances were reached",
        ]
    )
    cases = {each.get("name"): each for each in ElementTree.parse(pytester.path / "report.xml").iter("testcase")}
    properties = cases["test_retries_without_idempotence"].iter("property")
    assert {each.get("name"): each.get("value") for each in properties} == {
        "kafka-audit-leader": "FAILED",
        "kafka-audit-coordinator": "not reached",
        "kafka-audit-rebalance": "not reached",
        "kafka-audit-redelivery": "FAILED",
    }


ONE = """
    def test_one(kafka_topic, make_producer, make_consumer):
        make_producer(enable_idempotence=False).send(kafka_topic, b"tea")
        reader = make_consumer(auto_offset_reset="earliest")
        reader.assign((kafka_topic, 0))
        assert reader.take(1)
        from barnabas.testing import kit_thread
        assert kit_thread.wait(reader.aio.getmany(timeout_ms=100), 30) == {}
"""


def test_a_report_alone_does_not_fail_the_run(pytester: pytest.Pytester) -> None:
    """The audit of a suite begins with findings. A worker of xdist tells its outcomes."""
    pytester.makeconftest(SHORT)
    pytester.makepyfile(ONE)
    report = pytester.runpytest_subprocess("-p", "xdist.plugin", "-n", "1", "--kafka-audit")
    assert report.ret == pytest.ExitCode.OK
    assert rows(report) == {"test_one": ["FAILED", "not reached", "not reached", "FAILED"]}


def test_the_exit_status_and_the_text(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ONE)
    strict = pytester.runpytest_inprocess("--kafka-audit-strict")
    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    strict.assert_outcomes(passed=1)
    strict.stdout.fnmatch_lines(
        [
            "test                  leader killed       coordinator moved   rebalance           repeated delivery",
            "test_it.py::test_one  FAILED              not reached         not reached         FAILED",
            "",
            "test_it.py::test_one, leader killed: AssertionError: assert {TopicParti*",
            "  the leader, broker 1, was killed after Produce test-one-topic-*",
            "  the leader, broker 1, was killed after Fetch test-one-topic-*",
            "  to see it: pytest --kafka-disturb=leader 'test_it.py::test_one'",
            "1 test: 1 passes only without a disturbance; 2 of 4 disturbances were reached",
        ],
    )


def test_one_disturbance_alone_fails_as_any_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONE)
    run = pytester.runpytest_inprocess("--kafka-disturb=redelivery")
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["*kafka teardown*", "redelivery: the answer to Produce test-one-topic-* was lost"])
    assert "kafka audit" not in run.stdout.str()


def test_every_run_is_new(pytester: pytest.Pytester) -> None:
    """Fixtures of a function, instances of a class and of unittest are new; those of a module are kept."""
    pytester.makepyfile(
        """
        import unittest
        import pytest

        made = []

        @pytest.fixture(scope="module")
        def shared():
            made.append("shared")

        @pytest.fixture
        def state(kafka):
            return {}

        class TestPlain:
            def test_it(self, state, shared, kafka_topics):
                assert not state and not vars(self)
                state["used"] = self.used = kafka_topics("orders")

        class TestUnit(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _kafka(self, kafka):
                assert not hasattr(self, "kafka")
                self.kafka = kafka

            def test_it(self):
                self.kafka.create_topic("orders")
                made.append("unit")

        def test_last():
            assert made == ["shared", *["unit"] * 5]
        """
    )
    run = pytester.runpytest_inprocess("--kafka-audit-strict")
    run.assert_outcomes(passed=3)
    assert list(rows(run).values()) == [["not reached"] * 4, ["not reached"] * 4]
    assert run.ret == pytest.ExitCode.OK


def test_subtests_of_later_runs_do_not_fail_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import unittest
        import pytest

        runs = []

        class TestUnit(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _kafka(self, kafka):
                runs.append(1)

            def test_it(self):
                for number in range(2):
                    with self.subTest(number=number):
                        self.assertTrue(number or len(runs) != 2)
        """
    )
    run = pytester.runpytest_inprocess("--kafka-audit")
    assert run.ret == pytest.ExitCode.OK
    assert rows(run) == {"TestUnit::test_it": ["FAILED undisturbed", *["not reached"] * 3]}


@pytest.mark.parametrize("option", ["--setup-only", "--collect-only"])
def test_what_runs_no_test_is_not_audited(pytester: pytest.Pytester, option: str) -> None:
    pytester.makepyfile("def test_it(kafka): pass")
    run = pytester.runpytest_inprocess("--kafka-audit", option)
    assert run.ret == pytest.ExitCode.OK
    assert run.stdout.str().count("SETUP    F kafka\n") <= 1


def test_coroutines(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_asyncio")
    pytester.makepyfile(
        """
        import pytest
        from barnabas.client import Consumer

        @pytest.mark.asyncio
        async def test_it(kafka, kafka_topic, kafka_producer, kafka_aio_config):
            await kafka_producer.aio.send_and_wait(kafka_topic, b"tea")
            async with Consumer(kafka_topic, **kafka_aio_config, auto_offset_reset="earliest") as consumer:
                assert (await consumer.getone()).value == b"tea"
        """
    )
    run = pytester.runpytest_inprocess("-p", "pytest_asyncio.plugin", "--kafka-audit")
    run.assert_outcomes(passed=1)
    assert rows(run) == {"test_it": ["passed", "not reached", "not reached", "not reached"]}


def test_clients_of_the_kit_reach_nothing(pytester: pytest.Pytester) -> None:
    """They are the test's; an application with the same client id is none of them."""
    pytester.makepyfile(
        """
        from barnabas.testing.clients import KitProducer, Producer

        def use(topic, producer, consumer):
            producer.send(topic, b"tea")
            consumer.subscribe(topic)
            assert consumer.take(1)
            consumer.commit()

        def test_kit(kafka_topic, kafka_producer, kafka_consumer, kafka_admin):
            use(kafka_topic, kafka_producer, kafka_consumer)
            assert kafka_admin.list_groups()

        def test_both(kafka_topic, kafka_producer, kafka_consumer, make_producer):
            make_producer().send(kafka_topic, b"milk")
            use(kafka_topic, kafka_producer, kafka_consumer)
        """
    )
    run = pytester.runpytest_inprocess("--kafka-audit")
    run.assert_outcomes(passed=2)
    assert rows(run) == {
        "test_kit": ["not reached"] * 4,
        "test_both": ["passed", "not reached", "not reached", "passed"],
    }


def test_transactions(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(kafka_topic, make_producer, make_consumer):
            producer = make_producer(transactional_id="orders")
            for number in range(3):
                with producer.transaction():
                    producer.send(kafka_topic, b"%d" % number)
            reader = make_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
            reader.assign((kafka_topic, 0))
            assert [each.value for each in reader.take(3)] == [b"0", b"1", b"2"]
        """
    )
    run = pytester.runpytest_inprocess("--kafka-audit")
    run.assert_outcomes(passed=1)
    assert rows(run) == {"test_it": ["passed", "passed", "not reached", "passed"]}


def test_members_of_every_kind_are_evicted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        COPY
        + """
    KINDS = {"classic": {}, "consumer": {"group_protocol": "consumer"}, "static": {"group_instance_id": "one"}}

    @pytest.mark.parametrize("kind", KINDS)
    def test_it(make_producer, make_consumer, kind):
        producer = make_producer()
        fill(producer)
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **KINDS[kind]}
        Copy(producer, make_consumer(group_id="copy", **options), patient).run(4)
    """
    )
    run = pytester.runpytest_inprocess("--kafka-disturb=rebalance", "-rP")
    run.assert_outcomes(passed=3)
    evicted = "rebalance: member 'test-it-{}' of group 'copy' was evicted after Fetch in"
    assert [evicted.format(kind) in run.outlines for kind in ("classic", "consumer", "static")] == [True] * 3


@pytest.mark.process
def test_shared_brokers_and_broker_processes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("isolation", [
            pytest.param(each, marks=pytest.mark.kafka(isolation=each)) for each in ("namespace", "process")
        ])
        def test_it(kafka, kafka_topic, make_producer, isolation):
            make_producer().send(kafka_topic, b"tea")
            assert kafka.topics() == [kafka_topic]
            assert kafka.mode == ("process" if isolation == "process" else "thread")
        """
    )
    run = pytester.runpytest_inprocess("--kafka-audit")
    run.assert_outcomes(passed=2)
    assert list(rows(run).values()) == [["passed", "not reached", "not reached", "passed"]] * 2


def test_a_test_that_waits_for_ever_has_an_end(pytester: pytest.Pytester) -> None:
    """And one that fails although nothing was disturbed cannot run twice."""
    pytester.makeconftest(f"{SHORT}runs.LIMIT_S = 1\nruns.LIMIT_FACTOR = 0\n")
    pytester.makepyfile(
        """
        import threading

        def test_waits(kafka_topic, make_producer):
            producer = make_producer(enable_idempotence=False)
            producer.send(kafka_topic, b"tea")
            if producer.send(kafka_topic, b"tea").offset > 1:
                threading.Event().wait()

        times = []

        def test_runs_once(kafka):
            times.append(1)
            assert len(times) == 1
        """
    )
    run = pytester.runpytest_subprocess("--kafka-audit")
    run.assert_outcomes(passed=2)
    assert rows(run) == {
        "test_waits": ["FAILED", "not reached", "not reached", "FAILED"],
        "test_runs_once": ["FAILED undisturbed"] * 4,
    }
    run.stdout.fnmatch_lines(
        ["*::test_waits, leader killed: Failed: the test took longer than 1 s under the disturbance"]
    )


HANGS = """
    import ctypes

    def test_passes(kafka_topic, make_producer):
        make_producer().send(kafka_topic, b"tea")

    def test_hangs(kafka, kafka_topic, make_producer):
        producer = make_producer(transactional_id="orders", enable_idempotence=True)
        with producer.transaction():
            producer.send(kafka_topic, b"tea")
            if runs:
                mutex = ctypes.create_string_buffer(64)
                for _ in range(2):
                    ctypes.CDLL(None).pthread_mutex_lock(mutex)  # the second one never returns, also after a signal
            runs.append(1)

    runs = []
"""


def test_what_hangs_in_c_ends_the_run(pytester: pytest.Pytester) -> None:
    """With what is known by then: no signal reaches Python, so nothing else would end it."""
    pytester.makeconftest(f"{SHORT}runs.LIMIT_S, runs.HANG_S, runs.LIMIT_FACTOR = 2, 8, 0\n")
    pytester.makepyfile(test_it=HANGS)
    run = pytester.runpytest_subprocess("--kafka-audit", timeout=120)
    assert run.ret == pytest.ExitCode.INTERRUPTED
    told = run.stderr.str()
    assert "test_it.py::test_hangs, leader killed: the test hangs; the run ends after" in told
    assert re.search(r'File ".*test_it.py", line \d+ in test_hangs', told), "stacks"
    assert "client 'test-hangs' from" in told, "last requests"
    assert re.search(r"^test_it.py::test_hangs +FAILED ", told, re.MULTILINE)
    assert "  the leader, broker 1, was killed after Produce" in told
    assert re.search(r"^test_it.py::test_passes +passed +not reached +not reached +passed", told, re.MULTILINE)
    assert "test_it.py::test_passes, leader killed … passed" in run.outlines


def test_without_the_option_nothing_of_it_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): import sys; assert 'barnabas.testing.audit.runs' not in sys.modules")
    run = pytester.runpytest_subprocess("-p", "no:tests.support.application_clients")
    run.assert_outcomes(passed=1)
    assert "kafka audit" not in run.stdout.str()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--kafka-disturb=leaders"], "--kafka-disturb: unknown disturbance 'leaders'; did you mean 'leader'?*"),
        (["--kafka-disturb=leader", "--kafka-audit"], "--kafka-audit runs tests under every disturbance*"),
        (["--kafka-audit", "--kafka-bootstrap=127.0.0.1:1"], "*--kafka-bootstrap names a running Kafka*"),
    ],
)
def test_wrong_options_are_refused(pytester: pytest.Pytester, options: list[str], text: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    run = pytester.runpytest_inprocess(*options)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([f"ERROR: {text}"])


@pytest.fixture
def _sigint() -> Iterator[None]:
    """Programs that a test starts obey SIGINT, also where this run was started in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.process
@pytest.mark.usefixtures("_sigint")
def test_an_interrupt_in_the_middle_leaves_nothing(pytester: pytest.Pytester) -> None:
    from tests.support.processes.leftovers import wait_until_gone

    folder = pytester.mkdir("temporary")
    pytester.makepyfile(
        """
        import os, pytest, signal, threading

        runs = []

        @pytest.mark.kafka(brokers=2, isolation="process")
        def test_it(kafka, kafka_topic, kafka_producer):
            runs.append(1)
            with open("pids", "a") as file:
                print(*(each.pid for each in kafka.brokers), file=file)
            kafka_producer.send(kafka_topic, b"tea")
            if len(runs) == 2:
                print("interrupt", flush=True)
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait()
        """
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--kafka-audit", "-s"],
        cwd=pytester.path, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert done.stdout.count("interrupt\n") == 1
    pids = [int(each) for each in (pytester.path / "pids").read_text().split()]
    assert len(pids) == 4, "two runs"
    assert wait_until_gone(pids, folder) == ([], [])


def test_a_wrong_option_of_the_marker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.kafka(audit='no')\ndef test_it(kafka): pass")
    run = pytester.runpytest_inprocess("--kafka-audit")
    run.stderr.fnmatch_lines(["ERROR: *::test_it: @pytest.mark.kafka: audit='no': True or False"])


def test_a_cluster_that_records_nothing_is_disturbed_too() -> None:
    with Broker(topics={"orders": 1}) as kafka:
        auditor = Auditor("redelivery", kafka.core())
        kafka.wait(auditor.begin())
        with Wire(kafka.broker(1).address, client_id="app") as peer, pytest.raises(ConnectionResetError):
            peer.produce(9, "orders", 0, [b"tea"])
        kafka.wait(auditor.end())
        with Wire(kafka.broker(1).address, client_id="app") as peer:
            peer.produce(9, "orders", 0, [b"tea"])
        assert auditor.done == ["the answer to Produce orders was lost"]


def test_a_broker_that_is_alone_is_away_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbances, "ALONE_S", ALONE_S)
    with Broker(topics={"orders": 1}) as kafka:
        auditor = Auditor("leader", kafka.core())
        kafka.wait(auditor.begin())
        with Wire(kafka.broker(1).address, client_id="app") as peer, pytest.raises(ConnectionResetError):
            peer.produce(9, "orders", 0, [b"tea"])
        began = time.monotonic()
        kafka.wait(auditor.end(), factor=3)
        assert time.monotonic() - began > 0.8
        assert kafka.broker(1).state == "running"


def test_an_unknown_disturbance() -> None:
    with Broker() as kafka, pytest.raises(KitError, match="unknown disturbance 'ledaer'; did you mean 'leader'"):
        Auditor("ledaer", kafka.core())
