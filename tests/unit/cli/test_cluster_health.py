"""What `barnabas cluster health` says."""

from __future__ import annotations

from barnabas.cli.cluster_health import ClusterHealth, health_text


def test_without_a_controller_the_state_of_brokers_is_an_old_one() -> None:
    """Brokers answer from the metadata that they have; no controller fences those that have died since."""
    found = ClusterHealth(serving=(1, 2, 3), controller=-1)
    first, second, third, *_ = health_text(found, 3).splitlines()
    assert first == "healthy: no"
    assert second == "  controller: none answers; the lines below are of the time when one did, nodes may be down since"
    assert third == "  brokers that serve: 1, 2, 3"
