"""The directories of three voters after a run full of power cuts, as Kafka's own tool reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from barnabas.broker.image.records import TopicRecord, encode_record
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from tests.support.bench.quorum import Members
from tests.support.oracle.tools import dumped, records_in

pytestmark = pytest.mark.oracle


def a_run() -> Members:
    """Twelve records, and a leader that loses power after every third."""
    members = Members(5, 3)
    members.start()
    for number in range(12):
        members.run_until(lambda: members.leader() is not None, 10_000)
        leader = members.leader()
        assert leader is not None
        name = f"t{number}"
        leader.machine.append([encode_record(TopicRecord(name=name, topic_id=number.to_bytes(15, "big") + b"\x01"))])
        leader.after()
        members.run(200)
        if number % 3 == 0:
            leader.stop(power=True)
            members.run_until(lambda: members.leader() is not None, 10_000)
            leader.start()
    members.run_until(members.settled, 10_000)
    return members


def test_kafka_reads_the_logs_of_all_voters(tmp_path: Path) -> None:
    members = a_run()
    found = []
    for node_id, member in members.all.items():
        member.log.close()
        folder = tmp_path / f"{CLUSTER_METADATA_FOLDER}-{node_id}"
        folder.mkdir()
        for name in member.disk.listdir(CLUSTER_METADATA_FOLDER):
            (folder / name).write_bytes(member.disk.read(f"{CLUSTER_METADATA_FOLDER}/{name}"))
        state = json.loads((folder / "quorum-state").read_text())
        assert state["currentVoters"] == [{"voterId": voter} for voter in (1, 2, 3)]
        assert state["leaderEpoch"] == member.machine.epoch
        output = dumped(sorted(folder.glob("*.log")), "--cluster-metadata-decoder")
        assert "isvalid: false" not in output
        names = [record["data"]["name"] for record in records_in(output)]
        changes = re.findall(r"LeaderChange: (\{.*\})", output)
        found.append((names, [json.loads(change) for change in changes]))
    names, changes = found[0]
    assert names == [f"t{number}" for number in range(12)]
    assert found[1] == found[2] == found[0]
    assert len(changes) == len(members.leaders) >= 5
    for change in changes:
        assert change["voters"] == [{"voterId": voter} for voter in (1, 2, 3)]
        assert change["leaderId"] in (1, 2, 3)
