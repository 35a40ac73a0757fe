"""A run of classic groups and offsets against one broker, by raw requests: what it observes is compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from barnabas.errors import ErrorCode
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.requests import request_of

TOPIC = "groups-diff"
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + len(TOPIC).to_bytes(2, "big") + TOPIC.encode() + b"\xff\xff\xff\xff"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
RETRY = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


def insist(call: Callable[[], Any], *codes: ErrorCode) -> Any:
    """Repeats a call while it is answered one of these codes."""
    for _ in attempts("another answer"):
        if (response := call()).error_code not in codes:
            break
    return response


class Script:
    """A run against one broker: connections, and what was observed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.seen: list[Any] = []
        self._ids: dict[str, str] = {}
        self._wires: dict[str, Wire] = {}
        self._sent: dict[str, tuple[int, int, int]] = {}

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    def on(self, who: str) -> Wire:
        """Everyone has a connection."""
        if who not in self._wires:
            self._wires[who] = Wire(self.address, client_id=who)
        return self._wires[who]

    def send(self, who: str, request: Any, version: int) -> None:
        """Sends a request that may be answered much later."""
        self._sent[who] = (type(request).API_KEY, version, self.on(who).send(request, version))

    def receive(self, who: str) -> Any:
        """The answer to what was sent last."""
        return self.on(who).receive(*self._sent.pop(who))

    def plain(self, value: Any) -> Any:
        """Without what differs from run to run."""
        if isinstance(value, str):
            return UUID.sub(lambda match: self._ids.setdefault(match[0], f"#{len(self._ids) + 1}"), value)
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        return value

    def note(self, *values: Any) -> None:
        self.seen.append([self.plain(value) for value in values])

    def prepare(self) -> None:
        """A topic of two partitions, and a coordinator that has loaded."""
        wire = self.on("admin")
        wire.create_topic(TOPIC, 2)
        wire.await_coordinators()

    # requests

    def join_later(self, who: str, group: str, member_id: str = "", version: int = 9, **fields: Any) -> None:
        fields.setdefault("session_timeout_ms", 30_000)
        fields.setdefault("rebalance_timeout_ms", 30_000)
        fields.setdefault("protocol_type", "consumer")
        protocols = fields.pop("protocols", [("range", SUBSCRIPTION)])
        request = request_of(
            "JoinGroup",
            group_id=group,
            member_id=member_id,
            protocols=[{"name": name, "metadata": metadata} for name, metadata in protocols],
            **fields,
        )
        self.send(who, request, version)

    def joined(self, who: str) -> Any:
        response = self.receive(who)
        self.note(
            who,
            "joined",
            response.error_code,
            response.generation_id,
            response.protocol_type,
            response.protocol_name,
            response.leader,
            response.member_id,
            response.skip_assignment,
            sorted([self.plain(m.member_id), m.group_instance_id, m.metadata] for m in response.members),
        )
        return response

    def join(self, who: str, group: str, member_id: str = "", version: int = 9, **fields: Any) -> Any:
        self.join_later(who, group, member_id, version, **fields)
        return self.joined(who)

    def enter(self, who: str, group: str, **fields: Any) -> str:
        """Gets a member id and joins with it; the answer is still to come."""
        member_id = self.join(who, group, **fields).member_id
        self.join_later(who, group, member_id, **fields)
        assert isinstance(member_id, str)
        return member_id

    def sync_later(
        self, who: str, group: str, member_id: str, generation: int, version: int = 5, **fields: Any
    ) -> None:
        assignments = fields.pop("assignments", {})
        fields.setdefault("protocol_type", "consumer")
        fields.setdefault("protocol_name", "range")
        request = request_of(
            "SyncGroup",
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            assignments=[{"member_id": m, "assignment": a} for m, a in assignments.items()],
            **fields,
        )
        self.send(who, request, version)

    def synced(self, who: str) -> None:
        response = self.receive(who)
        self.note(
            who,
            "synced",
            response.error_code,
            response.protocol_type,
            response.protocol_name,
            response.assignment,
        )

    def sync(self, who: str, group: str, member_id: str, generation: int, version: int = 5, **fields: Any) -> None:
        self.sync_later(who, group, member_id, generation, version, **fields)
        self.synced(who)

    def heartbeat(self, who: str, group: str, member_id: str, generation: int, **fields: Any) -> None:
        request = request_of("Heartbeat", group_id=group, member_id=member_id, generation_id=generation, **fields)
        self.note(who, "heartbeat", self.on(who).call(request, 4).error_code)

    def leave(self, who: str, group: str, *members: tuple[str, str | None], version: int = 5) -> None:
        request = request_of(
            "LeaveGroup",
            group_id=group,
            member_id=members[0][0],
            members=[{"member_id": m, "group_instance_id": i} for m, i in members],
        )
        response = self.on(who).call(request, version)
        self.note(
            who,
            "left",
            response.error_code,
            [[m.member_id, m.group_instance_id, m.error_code] for m in response.members],
        )

    def until(self, group: str, state: str) -> None:
        """Waits until what was sent last has brought the group there."""
        for _ in attempts(f"{group} is {state}"):
            described = self.on("admin").call(request_of("DescribeGroups", groups=[group]), 5)
            if described.groups[0].group_state == state:
                return

    def describe(self, *groups: str, version: int = 6) -> None:
        response = self.on("admin").call(
            request_of("DescribeGroups", groups=list(groups), include_authorized_operations=True), version
        )
        for group in sorted(response.groups, key=lambda found: found.group_id):
            self.note(
                "described",
                group.group_id,
                group.error_code,
                group.error_message,
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                group.authorized_operations,
                sorted(
                    [m.client_id, self.plain(m.member_id), m.group_instance_id, m.member_metadata, m.member_assignment]
                    for m in group.members
                ),
            )

    def commit(self, who: str, group: str, partitions: dict[int, tuple[int, str | None]], **fields: Any) -> None:
        version = fields.pop("version", 9)
        topic = {
            "name": fields.pop("topic", TOPIC),
            "topic_id": fields.pop("topic_id", bytes(16)),
            "partitions": [
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": 3,
                    "committed_metadata": text,
                }
                for partition, (offset, text) in partitions.items()
            ],
        }
        response = self.on(who).call(request_of("OffsetCommit", group_id=group, topics=[topic], **fields), version)
        self.note(
            who,
            "committed",
            sorted([t.name, p.partition_index, p.error_code] for t in response.topics for p in t.partitions),
        )

    def offsets(self, group: str, *, stable: bool = False, everything: bool = False) -> None:
        topics = None if everything else [{"name": TOPIC, "partition_indexes": [0, 1, 9]}]
        request = request_of("OffsetFetch", groups=[{"group_id": group, "topics": topics}], require_stable=stable)
        response = self.on("admin").call(request, 9)
        self.note(
            "offsets",
            group,
            response.groups[0].error_code,
            sorted(
                [t.name, p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code]
                for t in response.groups[0].topics
                for p in t.partitions
            ),
        )


def delete(script: Script, *groups: str) -> None:
    response = script.on("admin").call(request_of("DeleteGroups", groups_names=list(groups)), 2)
    script.note("deleted", sorted([result.group_id, result.error_code] for result in response.results))


def delete_offsets(script: Script, group: str) -> None:
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in (1, 9)]}
        for name in (TOPIC, "no-such-topic")
    ]
    response = script.on("admin").call(request_of("OffsetDelete", group_id=group, topics=topics), 0)
    found = sorted([t.name, p.partition_index, p.error_code] for t in response.topics for p in t.partitions)
    script.note("offsets deleted", response.error_code, found)


def simple_offsets(script: Script) -> None:
    """Offsets without membership."""
    for version in (2, 5, 6, 9):
        script.commit(
            "s", "simple", {0: (version, "text"), 9: (1, ""), 1: (2, "x" * 4097), -1: (1, "")}, version=version
        )
        script.offsets("simple")
        script.commit("s", "absent", {0: (1, "")}, member_id="m", generation_id_or_member_epoch=1, version=version)
    script.commit("s", "simple", {0: (1, "")}, topic="no-such-topic")
    script.commit("s", "", {1: (3, "of the nameless")})
    script.offsets("")
    script.commit("s", "simple", {0: (1, "")}, topic_id=b"?" * 16, version=10)
    topic_id = script.on("s").call(request_of("Metadata", topics=[{"name": TOPIC}]), 12).topics[0].topic_id
    script.commit("s", "simple", {1: (11, "by id")}, topic_id=topic_id, version=10, topic="")
    script.offsets("simple", everything=True)
    for wanted in (topic_id, b"?" * 16):
        request = request_of(
            "OffsetFetch",
            groups=[{"group_id": "simple", "topics": [{"topic_id": wanted, "partition_indexes": [0, 1]}]}],
        )
        found = script.on("s").call(request, 10).groups[0]
        script.note("by id", found.error_code, [[vars_of(p) for p in t.partitions] for t in found.topics])
    for version in (1, 2, 5, 7):
        request = request_of("OffsetFetch", group_id="simple", topics=[{"name": TOPIC, "partition_indexes": [0, 1, 2]}])
        found = script.on("s").call(request, version)
        script.note(version, found.error_code, [[vars_of(p) for p in t.partitions] for t in found.topics])
    script.offsets("never-committed", everything=True)
    script.offsets("never-committed")
    script.describe("simple")
    for states, types in ((["empty"], []), (["Stable"], []), ([], ["CLASSIC"]), ([], ["consumer"]), (["x"], ["y"])):
        response = script.on("s").call(request_of("ListGroups", states_filter=states, types_filter=types), 5)
        listed = [[g.protocol_type, g.group_state, g.group_type] for g in response.groups if g.group_id == "simple"]
        script.note("listed", states, types, response.error_code, listed)
    delete(script, "simple")
    script.offsets("simple", everything=True)


def vars_of(partition: Any) -> list[Any]:
    return [partition.partition_index, partition.committed_offset, partition.metadata, partition.error_code]


def transactional_offsets(script: Script) -> None:
    """Offsets in a transaction: unstable, then committed or gone; with the group's generation (KIP-447)."""
    wire = script.on("p")
    group = "txn"
    a = script.enter("a", group)
    script.joined("a")
    script.sync("a", group, a, 1, assignments={a: b""})

    for round_, commit in enumerate((True, False)):
        producer = insist(
            lambda: wire.call(
                request_of("InitProducerId", transactional_id="groups-diff", transaction_timeout_ms=60_000), 4
            ),
            *RETRY,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
        identity = {
            "transactional_id": "groups-diff",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }

        def txn_commit(version: int, offset: int, identity: dict[str, Any] = identity, **fields: Any) -> None:
            topics = [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
                        for partition, metadata in ((0, "m"), (9, ""), (1, "x" * 5_000))
                    ],
                }
                for name in (TOPIC, "no-such-topic")
            ]
            response = wire.call(
                request_of("TxnOffsetCommit", group_id=group, topics=topics, **identity, **fields), version
            )
            found = sorted([t.name, p.partition_index, p.error_code] for t in response.topics for p in t.partitions)
            script.note("in transaction", version, found)

        txn_commit(3, 1)  # not part of the transaction yet
        txn_commit(4, 1)
        added = insist(
            partial(wire.call, request_of("AddOffsetsToTxn", group_id=group, **identity), 3),
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
        script.note("added", added.error_code)
        txn_commit(3, 2, member_id=a, generation_id=0)
        txn_commit(3, 2, member_id="ghost", generation_id=1)
        txn_commit(3, 10 + round_, member_id=a, generation_id=1)
        script.offsets(group, stable=True)
        script.offsets(group)
        ended = wire.call(request_of("EndTxn", committed=commit, **identity), 3)
        script.note("ended", ended.error_code)
        for _ in attempts("the offsets are stable"):
            fetched = wire.call(
                request_of(
                    "OffsetFetch",
                    groups=[{"group_id": group, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}],
                    require_stable=True,
                ),
                8,
            )
            if fetched.groups[0].topics[0].partitions[0].error_code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                break
        script.offsets(group, stable=True)
    script.leave("a", group, (a, None))


def play(address: str, play_script: Callable[[Script], None]) -> list[Any]:
    script = Script(address)
    try:
        script.prepare()
        play_script(script)
    finally:
        script.close()
    return script.seen
