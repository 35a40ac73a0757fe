"""How a run of pytest switches the admin port on: option, ini key, marker, fixture."""

from __future__ import annotations

import pytest

from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]


@pytest.mark.parametrize(
    ("options", "ini", "marker", "fixture"),
    [
        (("--kafka-admin-port=0",), "", "", ""),
        ((), "kafka_admin_port = 0", "", ""),
        ((), "", "@pytest.mark.kafka(admin_port=0)", ""),
        ((), "", "@pytest.mark.kafka(admin_port=0, isolation='namespace')", ""),
        ((), "", "@pytest.mark.kafka(isolation='process')", ", kafka_admin_url"),
        ((), "", "", ", kafka_admin_url"),
    ],
)
def test_ways_to_switch_it_on(
    pytester: pytest.Pytester, options: tuple[str, ...], ini: str, marker: str, fixture: str
) -> None:
    pytester.makeini(f"[pytest]\naddopts = -p barnabas.testing.plugin -p no:cacheprovider\n{ini}\n")
    pytester.makepyfile(
        f"""
    import pytest
    from tests.support.http import call

    {marker}
    def test_it(kafka{fixture}):
        assert call("GET", kafka.admin_url + "/v1/brokers")[1]["bootstrap_servers"] == kafka.bootstrap_servers

    {"@pytest.mark.kafka(isolation='namespace')" if "namespace" in marker else ""}
    @pytest.mark.skipif({bool(options or ini)}, reason="it is on for every test")
    def test_the_next_one(kafka):
        with pytest.raises(Exception, match="the admin port is off"):
            kafka.admin_url
    """
    )
    shown = pytester.runpytest_inprocess(*options)
    shown.assert_outcomes(passed=1 if options or ini else 2, skipped=1 if options or ini else 0)


def test_a_wrong_ini_key_ends_the_run(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = -p barnabas.testing.plugin\nkafka_admin_port = 0.0.0.0:0\n")
    pytester.makepyfile("def test_it(kafka): pass")
    shown = pytester.runpytest_inprocess()
    assert (
        "kafka_admin_port: admin_port='0.0.0.0:0': a port of 127.0.0.1, 1 to 65535"
        in shown.stdout.str() + shown.stderr.str()
    )
