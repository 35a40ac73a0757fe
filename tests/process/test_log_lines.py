"""The log of a node: its lines for what happens, JSON, levels at run time, and names that try to forge a line."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.groups import FindCoordinatorRequest, JoinGroupRequest, JoinGroupRequestProtocol
from tests.support.oracle.wire import Wire
from tests.support.processes.cli import called
from tests.support.processes.served import ServedBroker  # not the kit: options of the command about its log
from tests.support.processes.up import COMMAND

pytestmark = pytest.mark.process
FORGED = "x\n2026-01-01 00:00:00,000 CRITICAL kafka.server: Node stops\r\n"

SECONDS_MAX = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    served = ServedBroker(
        tmp_path / "data", "group.initial.rebalance.delay.ms=0", arguments=("--log-format", "json")
    ).start()
    yield served
    served.end()


def lines(broker: ServedBroker, beginning: str) -> list[dict[str, Any]]:
    """The lines of JSON whose message begins so; every line must be JSON."""
    found = [json.loads(line) for line in broker.log().splitlines()]
    assert all({"time", "level", "logger", "node", "message"} <= set(line) for line in found)
    return [line for line in found if line["message"].startswith(beginning)]


def awaited_lines(broker: ServedBroker, beginning: str) -> list[dict[str, Any]]:
    """Waits for a line with this beginning; returns all of them."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := lines(broker, beginning)):
        assert time.monotonic() < deadline, broker.log()
        time.sleep(0.02)
    return found


def test_what_happens_is_in_the_log(broker: ServedBroker) -> None:
    at = ("-b", broker.address)
    assert called("topic", "create", "orders", "--partitions", "2", *at).returncode == 0
    assert (
        called("topic", "alter", "orders", "--partitions", "3", "--config", "retention.ms=60000", *at).returncode == 0
    )
    assert called("produce", "orders", *at, stdin="a secret value\n").returncode == 0
    assert called("produce", "orders", "--transactional-id", "t", *at, stdin="tea\n").returncode == 0
    consumed = called("consume", "orders", "--group", "billing", "--from-beginning", "--max-records", "2", *at)
    assert called("topic", "delete", "orders", *at).returncode == 0, consumed.stderr

    (created,) = [line for line in lines(broker, "Topic is created") if line["topic"] == "orders"]
    assert (created["partitions"], created["node"], created["logger"]) == (2, 1, "kafka.server.metadata")
    assert lines(broker, "Partitions are added")[0]["before"] == 2
    assert "retention.ms=60000" in lines(broker, "Settings changed")[-1]["changes"]
    assert lines(broker, "Leadership is taken")[0]["logger"] == "state.change.logger"
    assert lines(broker, "Topic is deleted")[0]["topic"] == "orders"
    assert lines(broker, "Broker is unfenced")
    assert lines(broker, "Node is the active controller")
    assert "secret" not in broker.log()
    groups = lines(broker, "Group changes its state") + lines(broker, "Group has a new epoch")
    assert {line["group"] for line in groups} == {"billing"}
    (joined,) = lines(broker, "Member joins")
    (left,) = awaited_lines(broker, "Member is removed")
    assert (joined["level"], left["level"], joined["member"]) == ("INFO", "INFO", left["member"])


def test_names_of_clients_forge_no_line(broker: ServedBroker) -> None:
    with Wire(broker.address, client_id=FORGED) as wire:
        find = FindCoordinatorRequest(coordinator_keys=["any"], key_type=0)
        deadline = time.monotonic() + 60
        while wire.call(find, 4).coordinators[0].error_code != 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        level = AlterableConfig(name="root", value="TRACE", config_operation=0)
        resource = AlterConfigsResource(resource_type=8, resource_name="1", configs=[level])
        assert wire.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0
        join = JoinGroupRequest(
            group_id=FORGED * 40,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"a secret")],
        )
        assert wire.call(join, 3).error_code == 0
    assert lines(broker, "Request: api=JoinGroup")[0]["client_id"].startswith("x\\n2026-01-01")
    assert lines(broker, "Group changes its state")[0]["group"].endswith("…")
    assert lines(broker, "Member joins")
    assert not lines(broker, "Node stops")
    assert max(map(len, broker.log().splitlines())) < 6_000
    assert "a secret" not in broker.log()


def test_a_node_of_text_lines_ends_with_its_standard_input(tmp_path: Path) -> None:
    node = subprocess.Popen(
        [*COMMAND, "serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--until-stdin-ends"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stdout is not None
        assert node.stdin is not None
        assert node.stderr is not None
        assert node.stdout.readline().startswith("ready ")
        node.stdin.close()
        assert node.wait(60) == 0
        said = node.stderr.read()
        assert "WARNING kafka.server: Standard input has ended, the node stops" in said
        assert "Node has stopped cleanly: node_id=1" in said
    finally:
        node.kill()
        node.wait()


def test_standard_input_that_cannot_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as file:
        refused = subprocess.run(
            [*COMMAND, "serve", "--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--until-stdin-ends"],
            stdin=file,
            capture_output=True,
            text=True,
        )
    assert refused.returncode == 1
    assert "standard input is no pipe" in refused.stderr.splitlines()[-1]
