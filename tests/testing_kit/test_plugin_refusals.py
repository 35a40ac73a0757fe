"""The test kit's plugin refuses options, markers and settings that cannot be meant."""

from __future__ import annotations

import pytest

from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]


def test_no_running_kafka_was_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(kafka_noproc): pass")
    shown = pytester.runpytest_subprocess()
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
    shown = pytester.runpytest_subprocess()
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
    shown = pytester.runpytest_subprocess()
    assert shown.ret == pytest.ExitCode.USAGE_ERROR
    shown.stderr.fnmatch_lines([text])
