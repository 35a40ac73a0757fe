"""Fixtures made by `factories`, and markers with settings of single brokers or a file of faults, in pytest runs of their own."""

from __future__ import annotations

import pytest

from barnabas.testing import Cluster
from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]


@pytest.mark.process
def test_factories(pytester: pytest.Pytester) -> None:
    with Cluster(1) as running:
        pytester.makepyfile(
            f"""
            from barnabas.testing import factories

            mine_proc = factories.kafka_proc(config={{"num.partitions": 4}})
            mine = factories.kafka("mine_proc")
            pair = factories.kafka_cluster(
                brokers=2, node_config={{2: {{"broker.rack": "b"}}}}, internal_topics=False, topics={{"orders": 1}}
            )
            other_noproc = factories.kafka_noproc(bootstrap_servers="{running.bootstrap_servers}")
            other = factories.kafka("other_noproc")

            def test_first(mine, mine_proc):
                assert mine.mode == "process" and mine.brokers[0].pid == mine_proc.brokers[0].pid
                mine.create_topic("x")

            def test_second(mine):
                assert mine.topics() == []

            def test_others(pair, other):
                assert pair.topics() == ["orders"] and other.mode == "remote"
                assert pair.wait(racks(pair)) == {{1: None, 2: "b"}}

            async def racks(kafka):
                return {{each.node_id: each.rack for each in (await (await kafka.core().admin()).describe_cluster()).brokers}}
            """
        )
        pytester.runpytest_inprocess("-W", "error").assert_outcomes(passed=3)


@pytest.mark.process
def test_a_marker_with_settings_of_single_brokers_and_without_internal_topics(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from barnabas.testing import Broker

        def racks(admin):
            return {each.node_id: each.rack for each in admin.describe_cluster().brokers}

        @pytest.mark.parametrize("n", [1, 2])
        @pytest.mark.kafka(brokers=2, node_config={2: {"broker.rack": "b"}}, internal_topics=False)
        def test_pair(kafka, kafka_topic, kafka_admin, kafka_producer, kafka_consumer, n):
            assert racks(kafka_admin) == {1: None, 2: "b"}
            assert kafka_admin.list_topics(include_internal=True) == [kafka_topic]
            kafka_producer.send(kafka_topic, b"tea")
            kafka_consumer.subscribe(kafka_topic)  # its group makes the topic of offsets
            assert len(kafka_consumer.take(1)) == 1

        @pytest.mark.parametrize("n", [1, 2])
        @pytest.mark.kafka(brokers=2, node_config={1: {"broker.rack": "a"}})
        def test_another_pair(kafka, kafka_admin, n):
            assert racks(kafka_admin) == {1: "a", 2: None}
            assert len(kafka_admin.list_topics(include_internal=True)) == 2

        @pytest.mark.kafka(isolation="process", node_config={1: {"broker.rack": "a"}})
        def test_one_process(kafka, kafka_admin):
            assert isinstance(kafka, Broker) and racks(kafka_admin) == {1: "a"}
        """
    )
    pytester.runpytest_inprocess("-W", "error").assert_outcomes(passed=5)


FAULTS = """
    import pytest
    from tests.support.oracle.wire import Wire

    @pytest.mark.kafka(topics={"orders": 1}, faults="faults.yaml", isolation="%s")
    def test_it(kafka):
        with Wire(kafka.bootstrap_servers) as peer:
            assert peer.produce(9, "orders", 0, [b"record"]).error_code == 19
            assert peer.produce(9, "orders", 0, [b"record"]).error_code == 0

    @pytest.mark.kafka(faults="faults.yaml")
    def test_that_sends_nothing(kafka):
        pass
"""


@pytest.mark.parametrize("isolation", ["cluster", "namespace"])
def test_a_marker_installs_a_file_of_faults(pytester: pytest.Pytester, isolation: str) -> None:
    (pytester.path / "faults.yaml").write_text("{api: Produce, error: NOT_ENOUGH_REPLICAS}")
    pytester.makepyfile(FAULTS % isolation)
    shown = pytester.runpytest_inprocess()
    shown.assert_outcomes(passed=2, errors=1)
    shown.stdout.fnmatch_lines(["*no request met <error on Produce, 0 hits>*"])


def test_a_wrong_file_of_faults_ends_the_run_before_its_first_test(pytester: pytest.Pytester) -> None:
    (pytester.path / "faults.yaml").write_text("{api: Produce, eror: NOT_ENOUGH_REPLICAS}")
    pytester.makepyfile(test_it=FAULTS % "cluster")
    shown = pytester.runpytest_inprocess()
    shown.stderr.fnmatch_lines(["*test_it*@pytest.mark.kafka: *faults.yaml: unknown key 'eror'; did you mean 'error'*"])
    assert "passed" not in shown.stdout.str()
