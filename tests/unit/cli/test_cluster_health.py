"""What `barnabas cluster health` says."""

from __future__ import annotations

from barnabas.cli.cluster import ClusterHealth, health_text


def test_without_a_controller_the_state_of_brokers_is_an_old_one() -> None:
    """Brokers answer from the metadata that they have; no controller fences those that have died since."""
    found = ClusterHealth(serving=(1, 2, 3), controller=-1)
    first, second, third, *_ = health_text(found, 3).splitlines()
    assert first == "healthy: no"
    assert second == "  controller: none answers; the lines below are of the time when one did, nodes may be down since"
    assert third == "  brokers that serve: 1, 2, 3"


def test_a_sink_that_holds_back_readers_is_a_warning() -> None:
    found = ClusterHealth(serving=(1,), controller=1, stalled_sinks=("invoices",))
    lines = health_text(found, 1).splitlines()
    assert lines[0] == "healthy: yes"
    assert lines[-1].startswith("  warning: open transactions of sink invoices hold back")
    assert lines[-1].endswith("more than 15 min: start its query again, or `barnabas txn abort --sink invoices`")
