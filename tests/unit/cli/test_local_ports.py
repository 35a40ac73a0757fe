"""Ports of a local cluster: outside the ephemeral range, free, and the same again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from barnabas.cli import local_cluster
from barnabas.cli.local_cluster import chosen_ports, ephemeral_ports, is_free, quorum_ports, saved_ports

FREE = (24_100, 24_101, 24_102)


def test_the_quorum_is_10000_above_where_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "is_free", lambda port: True)
    monkeypatch.setattr(local_cluster, "ephemeral_ports", lambda: range(32_768, 61_000))
    assert quorum_ports([9092, 9093, 9094], None) == [19092, 19093, 19094]
    assert quorum_ports([25_000, 25_001], None) == [15_000, 15_001]  # 35,000 is ephemeral
    assert quorum_ports([22_767, 22_768], None) == [12_767, 12_768]  # the second one would be ephemeral
    assert quorum_ports([65_534, 65_535], None) == [10_000, 10_001]
    assert quorum_ports([9092], [7]) == [19092], "saved ones of another user"
    assert quorum_ports([9092, 9093], [9093, 9094]) == [19092, 19093], "saved ones that are clients' now"
    assert quorum_ports([9092, 9093], [20_001, 20_005]) == [20_001, 20_005]
    assert quorum_ports([9092, 9093], [20_001]) == [19092, 19093]


def test_a_port_in_use_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "is_free", lambda port: port not in (19_093, 10_000))
    monkeypatch.setattr(local_cluster, "ephemeral_ports", lambda: range(32_768, 61_000))
    assert quorum_ports([9092, 9093], None) == [10_002, 10_003]
    assert quorum_ports([9092, 9093], [19_092, 19_093]) == [10_002, 10_003]


def test_chosen_ports_are_free_and_not_ephemeral() -> None:
    ports = chosen_ports(6)
    assert len(set(ports)) == 6
    assert all(is_free(port) and port not in ephemeral_ports() for port in ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not is_free(ports[0])


def test_a_machine_whose_whole_range_is_ephemeral(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "ephemeral_ports", lambda: range(1, 65_536))
    assert len(set(chosen_ports(3))) == 3
    assert len(quorum_ports([9092, 9093], None)) == 2


@pytest.mark.parametrize("content", ["", "19092 x", "\xff", "19092 " * 3])
def test_a_file_of_saved_ports(tmp_path: Path, content: str) -> None:
    file = tmp_path / "quorum-ports"
    assert saved_ports(file) is None
    file.write_text(content, encoding="latin-1")
    assert saved_ports(file) in ([], None, [19092] * 3)
