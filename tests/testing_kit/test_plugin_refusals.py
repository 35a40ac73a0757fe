"""The test kit's plugin refuses options, markers and settings that cannot be meant."""

from __future__ import annotations

import pytest

from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]


def test_no_running_kafka_was_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(kafka_noproc): pass")
    shown = pytester.runpytest_inprocess()
    shown.assert_outcomes(errors=1)
    shown.stdout.fnmatch_lines(["*this test needs a running Kafka: give --kafka-bootstrap=HOST:PORT"])


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("broker=3", "unknown option 'broker'; did you mean 'brokers'?*"),
        ("isolation='proces'", "unknown isolation 'proces'; did you mean 'process'?*"),
        ("3", "write options by name, for example @pytest.mark.kafka(brokers=3)"),
        ("brokers=0", "brokers=0: 1 to 9 are possible"),
        ("topics=['orders']", "*write names and numbers of partitions, for example {'orders': 3}"),
        ("config={'num.partition': 2}", "*did you mean 'num.partitions'?"),
        ("brokers=2, node_config={3: {}}", "node_config: broker 3 is unknown; this cluster has brokers 1, 2"),
        ("internal_topics=0", "internal_topics=0: True or False"),
    ],
)
def test_a_wrong_marker_is_refused_before_any_test_runs(pytester: pytest.Pytester, marker: str, text: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        def test_other(): pass

        @pytest.mark.kafka({marker})
        def test_it(kafka): pass
        """
    )
    shown = pytester.runpytest_inprocess()
    assert shown.ret == pytest.ExitCode.USAGE_ERROR
    shown.stderr.fnmatch_lines([f"ERROR: *::test_it: @pytest.mark.kafka: {text.replace('[', '[[]')}"])


@pytest.mark.parametrize(
    ("ini", "text"),
    [
        ("kafka_isolation = clsuter", "*kafka_isolation: unknown isolation 'clsuter'; did you mean 'cluster'?*"),
        ("kafka_config = num.partitions", "*kafka_config: 'num.partitions': write key=value*"),
        ("kafka_config = num.partition=3", "*did you mean 'num.partitions'?*"),
    ],
)
def test_a_wrong_ini_value_is_refused(pytester: pytest.Pytester, ini: str, text: str) -> None:
    pytester.makeini(f"[pytest]\naddopts = -p barnabas.testing.plugin\n{ini}\n")
    pytester.makepyfile("def test_it(kafka): pass")
    shown = pytester.runpytest_inprocess()
    assert shown.ret == pytest.ExitCode.USAGE_ERROR
    shown.stderr.fnmatch_lines([text])


def test_what_belongs_to_new_brokers_is_refused_for_shared_ones(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.kafka(isolation="namespace", internal_topics=False)
        def test_topics(kafka): pass
        @pytest.mark.kafka(isolation="namespace", node_config={1: {"broker.rack": "a"}})
        def test_settings(kafka): pass
        """
    )
    shown = pytester.runpytest_inprocess()
    shown.assert_outcomes(errors=2)
    shown.stdout.fnmatch_lines(
        ["internal_topics belongs to new brokers, and *", "node_config belongs to new brokers, and *"]
    )


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("kafka_cluster(brokers=2, node_config={3: {}})", "KitError: node_config: broker 3 is unknown"),
        ("kafka_proc(confg={})", "TypeError: *unknown option 'confg'; did you mean 'config'[?]*"),
        ("kafka_proc(internal_topics='no')", "KitError: internal_topics='no': True or False"),
    ],
)
def test_a_wrong_factory_is_refused_where_it_is_written(pytester: pytest.Pytester, written: str, text: str) -> None:
    pytester.makeconftest(f"from barnabas.testing import factories\nmine = factories.{written}")
    shown = pytester.runpytest_inprocess()
    shown.stderr.fnmatch_lines([f"*{text}*"])
