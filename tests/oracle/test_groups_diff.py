"""The same requests to Kafka and to Barnabas: groups and offsets answer alike, code by code, generation by generation.

Each script is played on both and its observations compared. Member ids are random, so each stands by the order of its first
appearance; answers to several groups or partitions are compared without their order.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import (
    FindCoordinatorRequest,
)
from barnabas.protocol.records import iter_batches
from tests.support.oracle.group_script import (
    TOPIC,
    Script,
    delete,
    delete_offsets,
    play,
    simple_offsets,
    transactional_offsets,
)
from tests.support.requests import request_of

pytestmark = pytest.mark.oracle


def lifecycle(script: Script) -> None:
    """Join, sync, a third member, a leave, an end."""
    group = "life"
    a = script.enter("a", group)
    script.joined("a")
    script.describe(group)
    script.sync("a", group, a, 1, assignments={a: b"all"})
    script.describe(group, "never-heard-of")
    script.describe(group, "never-heard-of", version=5)
    script.heartbeat("a", group, a, 1)
    b = script.enter("b", group)
    script.until(group, "PreparingRebalance")
    script.describe(group)
    script.heartbeat("a", group, a, 1)
    script.sync("a", group, a, 1)
    script.commit("a", group, {0: (5, "last")}, member_id=a, generation_id_or_member_epoch=1)
    script.join_later("a", group, a)
    script.joined("a")
    script.joined("b")
    script.commit("a", group, {0: (6, "too early")}, member_id=a, generation_id_or_member_epoch=2)
    script.sync_later("b", group, b, 2)
    script.sync("a", group, a, 2, assignments={a: b"one", b: b"two"})
    script.synced("b")
    script.join("b", group, b)  # a follower, unchanged
    script.heartbeat("b", group, b, 1)
    script.heartbeat("b", group, "ghost", 2)
    script.commit("b", group, {0: (7, "x")}, member_id=b, generation_id_or_member_epoch=1)
    script.commit("b", group, {0: (7, "x")}, member_id="ghost", generation_id_or_member_epoch=2)
    script.commit("b", group, {0: (7, "x")})
    script.commit("b", group, {0: (7, None), 1: (8, "")}, member_id=b, generation_id_or_member_epoch=2)
    script.offsets(group)
    script.leave("b", group, (b, None), ("ghost", None))
    script.describe(group)
    script.heartbeat("a", group, a, 2)
    script.join("a", group, a)
    script.sync("a", group, a, 3, assignments={a: b"all"})
    delete(script, group)
    delete_offsets(script, group)
    script.leave("a", group, (a, None), version=2)
    script.describe(group)
    delete_offsets(script, group)
    script.offsets(group, everything=True)
    delete(script, group)
    script.describe(group)
    script.offsets(group, everything=True)


def static_members(script: Script) -> None:
    """KIP-345: come back, be fenced, be removed by name."""
    group = "static"
    old = script.join("a", group, group_instance_id="one").member_id
    script.sync("a", group, old, 1, assignments={old: b"all"}, group_instance_id="one")
    new = script.join("a2", group, group_instance_id="one").member_id
    script.sync("a2", group, new, 1, group_instance_id="one")
    script.heartbeat("a", group, old, 1, group_instance_id="one")
    script.sync("a", group, old, 1, group_instance_id="one")
    script.join("a", group, old, group_instance_id="one")
    script.commit("a", group, {0: (1, "")}, member_id=old, generation_id_or_member_epoch=1, group_instance_id="one")
    script.leave("a", group, (old, "one"))
    script.heartbeat("a2", group, new, 1)
    script.heartbeat("a2", group, new, 1, group_instance_id="two")
    older = script.join("a3", group, version=8, group_instance_id="one").member_id
    script.describe(group)
    script.join_later("b", group, group_instance_id="two")
    script.until(group, "PreparingRebalance")
    script.join("a3", group, older, group_instance_id="one")
    script.joined("b")
    script.join_later("b2", group, group_instance_id="two")
    script.until(group, "PreparingRebalance")
    script.join("a3", group, older, group_instance_id="one")
    script.joined("b2")
    script.describe(group)
    script.leave("admin", group, ("", "two"), ("", "three"))
    script.leave("admin", group, ("", "one"))
    script.describe(group)


def refusals(script: Script) -> None:
    """What is refused at the door."""
    for version in range(10):
        script.join("x", f"v{version}", "ghost", version)
        script.join("x", f"v{version}", "", version, session_timeout_ms=1)
        script.join("x", "", "", version)
        script.join("x", f"none-{version}", "", version, protocols=[])
    first = script.enter("a", "mixed", protocols=[("range", b""), ("roundrobin", b"")])
    script.joined("a")
    script.join("b", "mixed", protocols=[("sticky", b"")])
    script.join("b", "mixed", protocol_type="connect")
    script.sync("a", "mixed", first, 1, protocol_name="sticky")
    script.sync("a", "mixed", first, 1, protocol_type=None)
    script.sync("a", "mixed", first, 0)
    script.sync("a", "mixed", "ghost", 1)
    script.sync("a", "no-group", "ghost", 1)
    script.sync("a", "", "ghost", 1)
    script.heartbeat("a", "", "ghost", 1)
    script.heartbeat("a", "no-group", "ghost", 1)
    script.leave("a", "no-group", ("ghost", None))
    script.leave("a", "no-group", ("ghost", None), version=2)
    script.leave("a", "", ("ghost", None))
    delete(script, "", "no-group", "mixed")
    delete_offsets(script, "no-group")
    delete_offsets(script, "")
    for key_type in (0, 1, 2, 3):
        response = script.on("x").call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k", ""]), 6)
        script.note("found", key_type, [[c.key, c.error_code, c.node_id] for c in response.coordinators])


def every_join_version(script: Script) -> None:
    """One member in every version there is."""
    for version in range(10):
        group = f"join-v{version}"
        response = script.join("m", group, "", version)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            response = script.join("m", group, response.member_id, version)
        member_id = response.member_id
        script.sync("m", group, member_id, 1, min(version, 5), assignments={member_id: b"mine"})
        script.describe(group)
        script.leave("m", group, (member_id, None), version=min(version, 5))
        script.describe(group)


def long_commits(script: Script) -> None:
    """Each commit is one batch, or refused as a whole: the largest batch of the internal topic bounds it."""
    for count in (1_000, 20_000):
        offsets = [{"partition_index": at % 2, "committed_offset": at} for at in range(count)]
        commit = request_of("OffsetCommit", group_id=f"long-{count}", topics=[{"name": TOPIC, "partitions": offsets}])
        for answer in script.on("long").call(commit, 9).topics:
            script.note(count, len(answer.partitions), sorted({each.error_code for each in answer.partitions}))
        script.offsets(f"long-{count}")


def long_deletions(script: Script) -> None:
    """All groups of one shard are deleted by one batch, or refused together: a long group id makes many bytes."""
    names = [name for name in (f"{n}-{'g' * 30_000}" for n in range(2_000)) if partition_for(name, 50) == 7][:24]
    unknown = next(name for name in (f"unknown-{n}" for n in range(2_000)) if partition_for(name, 50) == 7)
    elsewhere = next(name for name in (f"elsewhere-{n}" for n in range(2_000)) if partition_for(name, 50) == 8)
    for group in (*names, elsewhere):
        script.commit("long", group, {0: (1, "")})

    def deleted(*groups: str) -> None:
        answer = script.on("long").call(request_of("DeleteGroups", groups_names=list(groups)), 2)
        script.note("deleted", sorted([each.group_id[:20], each.error_code] for each in answer.results))

    def offsets_left() -> None:
        asked = [{"group_id": group, "topics": None} for group in (*names, elsewhere)]
        answer = script.on("long").call(request_of("OffsetFetch", groups=asked), 9)
        script.note("left", sorted(each.group_id[:20] for each in answer.groups if each.topics))

    deleted(*names, unknown, elsewhere)
    offsets_left()
    end = script.on("long").fetch("__consumer_offsets", 7, 0, max_bytes=1).high_watermark
    deleted(*names[:8], unknown)
    offsets_left()
    written = script.on("long").fetch("__consumer_offsets", 7, end).records
    script.note("batches", [header.record_count for _, header in iter_batches(written)])


def long_offset_deletions(script: Script) -> None:
    """A request of many megabytes of keys deletes the one offset that exists; one batch for the offsets of a group."""
    group = "g" * 30_000
    script.commit("long", group, {0: (1, ""), 1: (2, "")})
    for partitions in ([9] * 1_000 + [0], [1] * 1_000):
        topics = [{"name": TOPIC, "partitions": [{"partition_index": index} for index in partitions]}]
        answer = script.on("long").call(request_of("OffsetDelete", group_id=group, topics=topics), 0)
        found = {(each.partition_index, each.error_code) for topic in answer.topics for each in topic.partitions}
        script.note("offsets deleted", answer.error_code, sorted(found))
        script.offsets(group)


SCRIPTS: list[Callable[[Script], None]] = [
    lifecycle,
    static_members,
    refusals,
    every_join_version,
    simple_offsets,
    transactional_offsets,
    long_commits,
    long_deletions,
    long_offset_deletions,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_groups_answer_as_kafka_does(kafka: str, barnabas: str, script: Callable[[Script], None]) -> None:
    expected = play(kafka, script)
    assert expected
    assert play(barnabas, script) == expected
