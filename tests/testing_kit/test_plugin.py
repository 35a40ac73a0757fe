"""The pytest plugin, in pytest runs of its own: fixtures, marker, options, leaks, and what is left after a run."""

from __future__ import annotations

import tomllib

import pytest

from barnabas.testing import Broker
from tests.support.pytest_runs import ROOT, plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]


LEAKS = "error::barnabas.testing.LeakedClientWarning"


def test_the_package_names_the_plugin() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["pytest11"] == {"barnabas": "barnabas.testing.plugin"}


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as pip installs it: with its metadata on the path, and in it the entry point of pyproject.toml."""
    metadata = pytester.mkdir("installed") / "barnabas-0.dist-info"
    metadata.mkdir()
    (metadata.parent / "barnabas").symlink_to(ROOT / "barnabas")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: barnabas\nVersion: 0\n")
    (metadata / "RECORD").write_text("barnabas/__init__.py,,\n")
    (metadata / "entry_points.txt").write_text("[pytest11]\nbarnabas = barnabas.testing.plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(metadata.parent))
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makeini("[pytest]\n")


@pytest.mark.usefixtures("installed")
def test_pytest_rewrites_the_assertions_of_no_module(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cache it would parse 400 modules in each run. It has loaded the first three before the plugin can act.

    No option names the plugin: its entry point does.
    """
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    pytester.makepyfile(
        """
        import sys

        def by(module):
            return type(module.__loader__).__name__

        def test_it(kafka, kafka_producer):
            assert by(sys.modules[__name__]) == "AssertionRewritingHook"
            loaded = {name: by(each) for name, each in sys.modules.items() if name.partition(".")[0] == "barnabas"}
            assert len(loaded) > 200 and "barnabas.testing.history.reporting" in loaded
            rewritten = {name for name, loader in loaded.items() if loader == "AssertionRewritingHook"}
            assert rewritten == {"barnabas", "barnabas.testing", "barnabas.testing.plugin"}
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_plugin_imports_nothing_until_it_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_without_kafka(): pass")
    pytester.makeconftest(
        """
        import sys
        def pytest_unconfigure(config):
            loaded = sorted(name for name in sys.modules if name.startswith("barnabas"))
            print("loaded", loaded, "asyncio" in sys.modules)
        """
    )
    shown = pytester.runpytest_subprocess("-s")
    shown.assert_outcomes(passed=1)
    loaded = ["barnabas", "barnabas.testing", "barnabas.testing.plugin", "barnabas.testing.stash"]
    assert f"loaded {loaded} False" in shown.outlines


SYNC = """
    import pytest

    def test_fresh(kafka, kafka_bootstrap_servers):
        assert kafka.topics() == []
        assert kafka_bootstrap_servers == kafka.bootstrap_servers
        assert len(kafka.brokers) == 1

    def test_clients(kafka_topic, kafka_producer, kafka_consumer, kafka_group_id, kafka_admin):
        written = kafka_producer.send(kafka_topic, b"tea", key=b"1")
        assert (written.topic, written.partition, written.offset) == (kafka_topic, 0, 0)
        kafka_consumer.subscribe(kafka_topic)
        assert [(each.key, each.value) for each in kafka_consumer.take(1)] == [(b"1", b"tea")]
        kafka_consumer.commit()
        assert kafka_consumer.committed(kafka_topic) == 1
        assert [each.group_id for each in kafka_admin.list_groups()] == [kafka_group_id]
        with pytest.raises(TimeoutError, match="0 of 1 records came within 0.1 s: none"):
            kafka_consumer.take(1, timeout=0.1)

    def test_transaction(kafka_topics, make_kafka_producer, make_kafka_consumer, kafka_transactional_id):
        topic = kafka_topics("orders", partitions=2, config={"retention.ms": 1000000})
        assert topic == "orders"
        producer = make_kafka_producer(transactional_id=kafka_transactional_id)
        with producer.transaction():
            producer.send(topic, b"kept", partition=1)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"dropped", partition=1)
            1 / 0
        with producer.transaction():
            producer.send(topic, b"last", partition=1)
        reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
        reader.assign((topic, 1))
        assert [each.value for each in reader.take(2)] == [b"kept", b"last"]

    @pytest.mark.kafka(brokers=3, topics={"orders": 3}, config={"num.partitions": 5})
    def test_marker(kafka, kafka_admin):
        assert len(kafka.brokers) == 3
        assert kafka.topics() == ["orders"]
        assert {each["leader"] for each in kafka.wait(kafka.core().partitions("orders"))} <= {1, 2, 3}
        kafka.kill(2)
        assert kafka.broker(2).state == "down"

    @pytest.mark.kafka(brokers=3)
    def test_the_next_one_is_whole(kafka):
        assert [each.state for each in kafka.brokers] == ["running"] * 3
        assert kafka.topics() == []

    def test_names_are_unique(kafka_group_id, kafka_transactional_id):
        assert kafka_group_id != kafka_transactional_id
        assert kafka_group_id.startswith("test-names-are-unique-group-")

    def test_configs(kafka_client_config, kafka_aio_config, kafka):
        assert kafka_client_config == {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "test-configs"}
        assert kafka_aio_config == {"bootstrap_servers": kafka.bootstrap_servers, "client_id": "test-configs"}
"""


def test_fixtures_in_plain_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SYNC)
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=7)


def test_workers_of_xdist_have_a_broker_each_and_draw_one_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(kafka_broker, kafka_producer, kafka_seed, worker_id):
            assert kafka_producer.send("orders", b"tea").offset == 0
            print(f"told {worker_id} {kafka_broker.bootstrap_servers} {kafka_seed}")
        """
    )
    shown = pytester.runpytest_subprocess("-p", "xdist.plugin", "-n", "2", "--dist=each", "-W", "error", "-rP")
    shown.assert_outcomes(passed=2)
    told = [line.split() for line in shown.outlines if line.startswith("told ")]
    assert [len({each[place] for each in told}) for place in (1, 2, 3)] == [2, 2, 1]


ASYNC = r"""
    import asyncio, inspect
    import pytest
    from barnabas.client import Consumer, Producer
    from barnabas.testing import KitError, KitTimeout

    async def copy(config):
        async with Consumer("in", **config, auto_offset_reset="earliest") as consumer, Producer(**config) as producer:
            async for record in consumer:
                await producer.send("out", record.value)

    {mark}
    async def test_an_application_in_a_task(kafka, kafka_producer, kafka_consumer, kafka_aio_config, kafka_faults):
        await kafka.aio.create_topic("in", partitions=2)
        application = asyncio.create_task(copy(kafka_aio_config))
        kafka_faults.on("Produce", topic="in").delay(0.2)
        assert (await kafka_producer.aio.send("in", b"tea", key=b"1")).offset == 0
        await kafka_consumer.aio.subscribe("out")
        with pytest.raises(KitError, match=r"write `await kafka_consumer\.aio\.take\(…\)`"):
            kafka_consumer.take(1)
        assert [each.value for each in await kafka_consumer.aio.take(1, timeout=60)] == [b"tea"]
        await kafka_consumer.aio.commit()
        assert await kafka_consumer.aio.committed("out") == 1
        with pytest.raises(KitTimeout, match="0 of 1 records came within 0.1 s: none"):
            await kafka_consumer.aio.take(1, timeout=0.1)
        application.cancel()
        await asyncio.wait({{application}})
        await kafka.aio.kill()
        await kafka.aio.restart()
        assert await kafka.aio.topics() == ["in", "out"]

    def test_names_and_signatures(kafka_producer, kafka_consumer, kafka_admin):
        for client in (kafka_producer, kafka_consumer, kafka_admin):
            assert {{"send", "take", "create_topics"}} & set(dir(client.aio)) & set(dir(client))
        assert list(inspect.signature(kafka_consumer.aio.take).parameters) == ["count", "timeout"]
        assert inspect.signature(kafka_consumer.take) == inspect.signature(kafka_consumer.aio.take)
        assert "partition" in inspect.signature(kafka_producer.aio.send).parameters
        assert "timeout_ms" in inspect.signature(kafka_consumer.aio.getmany).parameters
        with pytest.raises(AttributeError, match="unknown attribute of ConsumerAio 'tak'; did you mean 'take'"):
            kafka_consumer.aio.tak
"""


def test_patience(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from barnabas.testing import Cluster, KitTimeout

        def test_it(kafka, kafka_faults, kafka_topic, kafka_consumer):
            kafka_consumer.subscribe(kafka_topic)
            with pytest.raises(KitTimeout, match="within 0.3 s"):
                kafka_consumer.take(1, timeout=0.1)
            fault = kafka_faults.on("EndTxn", strict=False).drop()
            with pytest.raises(KitTimeout, match="within 0.6 s"):
                fault.wait(timeout=0.2)
            assert kafka.core().timeout_s == 90
        """
    )
    pytester.runpytest_subprocess("--kafka-patience=3").assert_outcomes(passed=1)
    wrong = pytester.runpytest_inprocess("--kafka-patience=0")
    wrong.stderr.fnmatch_lines(["ERROR: --kafka-patience=0: write a number above 0, at most 100"])


def test_fixtures_under_pytest_asyncio(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_asyncio")
    pytester.makepyfile(ASYNC.format(mark=""))
    run = pytester.runpytest_inprocess("-p", "pytest_asyncio.plugin", "--asyncio-mode=auto", "-W", LEAKS)
    run.assert_outcomes(passed=2)


def test_fixtures_under_anyio(pytester: pytest.Pytester) -> None:
    pytest.importorskip("anyio")
    pytester.makepyfile(ASYNC.format(mark="@pytest.mark.anyio"))
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n")
    pytester.runpytest_inprocess("-p", "anyio.pytest_plugin", "-W", LEAKS).assert_outcomes(passed=2)


def test_unittest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import unittest
        import pytest
        from barnabas.testing import Broker

        class WithFixtures(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _kafka(self, kafka):
                self.kafka = kafka

            def test_it(self):
                self.assertEqual(self.kafka.topics(), [])

        class WithoutPytest(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.kafka = cls.enterClassContext(Broker(topics={"orders": 1}))

            def test_it(self):
                self.assertEqual(self.kafka.topics(), ["orders"])

        class Coroutines(unittest.IsolatedAsyncioTestCase):
            async def test_it(self):
                async with Broker() as kafka:
                    self.assertEqual(await kafka.aio.topics(), [])
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=3)


def test_a_namespace_is_empty_for_each_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.kafka(brokers=3, isolation="namespace")
        used = []

        @pytest.mark.parametrize("number", range(3))
        def test_it(kafka, kafka_topics, kafka_producer, kafka_consumer, kafka_admin, number):
            used.append(kafka.bootstrap_servers)
            assert kafka.topics() == []
            assert kafka_admin.list_groups() == []
            assert [each.state for each in kafka.brokers] == ["running"] * 3
            topic = kafka_topics("orders", partitions=3)
            kafka_producer.send(topic, b"%d" % number)
            kafka_consumer.subscribe(topic)
            assert [each.value for each in kafka_consumer.take(1)] == [b"%d" % number]
            kafka_consumer.commit()
            if number == 0:
                kafka.kill(2)
            elif number == 1:
                kafka.pause(3)

        def test_shared():
            assert len(used) == 3 and len(set(used)) == 1
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=4)


def test_a_leaked_client_is_named(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.testing.fixtures.LEAK_GRACE_S", 0.1)
    pytester.makepyfile(
        """
        import asyncio, threading
        import pytest
        from barnabas.client import Consumer

        def leak(kafka, config, group):
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True).start()
            async def start():
                consumer = Consumer("orders", **config, group_id=group)
                await consumer.start()
                await consumer.getmany(timeout_ms=500)
                return consumer
            return asyncio.run_coroutine_threadsafe(start(), loop).result(30)

        @pytest.mark.kafka(topics={"orders": 1})
        def test_leak(kafka, kafka_aio_config):
            leak(kafka, kafka_aio_config, "billing")

        @pytest.mark.kafka(topics={"orders": 1}, isolation="namespace")
        def test_leak_shared(kafka, kafka_aio_config):
            leak(kafka, kafka_aio_config, "billing")

        @pytest.mark.kafka(isolation="namespace")
        def test_after(kafka):
            assert kafka.topics() == []  # and it is not blamed for the client of the test before

        @pytest.mark.kafka(topics={"orders": 1})
        def test_failed(kafka, kafka_aio_config):
            leak(kafka, kafka_aio_config, "billing")
            assert False
        """
    )
    shown = pytester.runpytest_inprocess(
        "-p", "no:unraisableexception"
    )  # of what earlier tests have left in this process
    shown.assert_outcomes(passed=3, failed=1, warnings=2)
    shown.stdout.fnmatch_lines(
        [
            "*LeakedClientWarning: *::test_leak has left clients connected: "
            "client id 'test-leak', a member of group 'billing' (127.0.0.1:* at broker 1). Close them before the test ends"
        ]
    )
    shown.stdout.no_fnmatch_line("*::test_failed has left*")


def test_a_broker_that_stopped_by_itself_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(kafka):
            host = kafka.backend("test")._brokers[1].host
            host.node.reactor.clock  # the node runs
            kafka.backend("test")._brokers[1].thread.call(lambda: host.node.reactor.fatal(OSError("no disk")))
            import time; time.sleep(0.1)
        """
    )
    shown = pytester.runpytest_inprocess()
    shown.assert_outcomes(passed=1, errors=1)
    shown.stdout.fnmatch_lines(["*KitError: broker 1 stopped by itself: no disk"])


@pytest.mark.process
def test_a_crashed_worker_leaves_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.processes.leftovers import wait_until_gone

    folder = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    pytester.makepyfile(
        """
        import os
        import pytest

        @pytest.mark.kafka(brokers=2, isolation="process")
        def test_crash(kafka):
            with open("pids", "w") as file:
                print(*(each.pid for each in kafka.brokers), file=file)
            os._exit(1)

        def test_other(kafka_proc):
            assert kafka_proc.brokers[0].pid
        """
    )
    shown = pytester.runpytest_subprocess("-p", "xdist.plugin", "-n", "1", "--max-worker-restart=1")
    shown.assert_outcomes(passed=1, failed=1)
    pids = [int(each) for each in (pytester.path / "pids").read_text().split()]
    assert len(pids) == 2
    assert wait_until_gone(pids, folder) == ([], [])


def test_the_same_tests_on_a_running_kafka(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from barnabas.testing import NotPossible

        def test_clients(kafka, kafka_topics, kafka_producer, kafka_consumer):
            topic = kafka_topics("orders")
            assert topic.startswith("orders-test-clients-topic-")
            kafka_producer.send(topic, b"tea")
            kafka_consumer.subscribe(topic)
            assert [each.value for each in kafka_consumer.take(1)] == [b"tea"]
            kafka_consumer.commit()

        def test_what_it_cannot(kafka, kafka_noproc):
            assert kafka.mode == kafka_noproc.mode == "remote"
            with pytest.raises(NotPossible, match="kill is not possible in mode 'remote'"):
                kafka.kill(1)

        @pytest.mark.kafka(brokers=3)
        def test_too_many(kafka): pass

        @pytest.mark.kafka(isolation="process")
        def test_own_brokers(kafka): pass
        """
    )
    with Broker(topics={"of-others": 1}) as running:
        shown = pytester.runpytest_inprocess(f"--kafka-bootstrap={running.bootstrap_servers}", "-rs")
        shown.assert_outcomes(passed=2, skipped=1, errors=1)
        assert running.topics() == ["of-others"]
    shown.stdout.fnmatch_lines(
        [
            "*isolation 'process' starts brokers, and --kafka-bootstrap*",
            "*this test needs 3 brokers, and this Kafka has 1",
        ]
    )


def test_the_ini_file_sets_brokers(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\naddopts = -p barnabas.testing.plugin\nkafka_isolation = namespace\nkafka_config =\n    num.partitions=4\n"
    )
    pytester.makepyfile(
        """
        import pytest
        def test_it(kafka, kafka_broker, kafka_producer):
            assert kafka is kafka_broker
            kafka_producer.send("auto", b"x")
            assert kafka.leader("auto", 3) == 1

        @pytest.mark.kafka(isolation="cluster", config={"num.partitions": 2})
        def test_marker_wins(kafka, kafka_broker, kafka_producer):
            assert kafka is not kafka_broker
            kafka_producer.send("auto", b"x")
            with pytest.raises(Exception, match="it has partitions 0 to 1"):
                kafka.leader("auto", 2)
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


FAULTS = """
    import pytest

    def test_that_hits(kafka, kafka_faults, kafka_admin):
        kafka_faults.on("CreateTopics").error("POLICY_VIOLATION")
        with pytest.raises(Exception, match="POLICY_VIOLATION"):
            from barnabas.client import NewTopic
            kafka_admin.create_topics([NewTopic("orders", 1)])

    def test_that_hits_nothing(kafka_faults):
        kafka_faults.on("EndTxn", txn="nobody").error("COORDINATOR_NOT_AVAILABLE")

    def test_that_need_not_hit(kafka_faults):
        kafka_faults.on("EndTxn", strict=False).error("COORDINATOR_NOT_AVAILABLE")

    @pytest.mark.kafka(isolation="namespace")
    def test_in_a_namespace(kafka, kafka_faults):
        kafka_faults.on("Metadata", times=None, strict=False).error("UNKNOWN_SERVER_ERROR")
        kafka.pause(1)  # the end of the test resumes it, without the fault

    @pytest.mark.kafka(isolation="namespace")
    def test_afterwards_in_the_namespace(kafka, kafka_topic, kafka_producer):
        kafka_producer.send(kafka_topic, b"no fault is left")
"""


WRONG_USES = """
def test_an_argument(kafka):
    kafka.clock.advance(hour=1)


def test_a_value(kafka):
    helper(kafka)


def helper(kafka):
    kafka.kill(7)
"""


def test_a_wrong_use_is_shown_where_the_test_has_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WRONG_USES)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*kafka.clock.advance(hour=1)", "*did you mean 'hours'?*"])
    result.stdout.fnmatch_lines([">*kafka.kill(7)", "*broker 7*"])
    kit = "*barnabas/testing/*:*: "
    result.stdout.no_fnmatch_line(kit)

    everything = pytester.runpytest_inprocess("--full-trace")
    everything.stdout.fnmatch_lines([f"{kit}*"])


def test_a_fault_that_hits_nothing_fails_its_test_and_none_is_left(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAULTS)
    shown = pytester.runpytest_inprocess()
    shown.assert_outcomes(passed=5, errors=1)
    shown.stdout.fnmatch_lines(["*no request met <error on EndTxn txn='nobody', 0 hits>*"])
