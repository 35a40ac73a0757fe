"""Consumer groups (KIP-848) in one shard: epochs, revocation, deadlines, failover, migration; and random lives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroupState
from barnabas.broker.coordinator.groups.consumer.heartbeat_request import check_heartbeat
from barnabas.broker.coordinator.groups.consumer.member import ConsumerMember, MemberState
from barnabas.broker.coordinator.groups.offsets import CHUNK
from barnabas.broker.coordinator.groups.records import (
    CommittedOffset,
    ConsumerRecord,
    Kind,
    OffsetRecord,
    ResolvedRegex,
)
from barnabas.broker.coordinator.groups.settings import ConsumerSettings, GroupSettings
from barnabas.broker.coordinator.groups.views import describe_consumers, list_groups
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import SUBSCRIPTION_NAMES_MAX
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tests.support.bench.consumer_group import group, image, settle
from tests.support.bench.group import Client, GroupBench
from tests.support.clock import WALL_MS
from tests.support.python_calls import python_calls

DAY_MS = 24 * 3_600_000


@pytest.fixture
def bench() -> GroupBench:
    found = GroupBench()
    found.image = image(t=4, u=3)
    return found


def test_first_member_gets_everything_and_is_in_the_log(bench: GroupBench) -> None:
    a = Client(bench, "a", ["t"])
    a.join()
    assert (a.epoch, a.owned) == (2, {("t", number) for number in range(4)})
    assert group(bench).state is ConsumerGroupState.STABLE
    loaded = bench.replayed().tables.consumer["g"]
    assert loaded.members == group(bench).members
    assert loaded.target == group(bench).target
    assert (loaded.epoch, loaded.target_epoch) == (group(bench).epoch, group(bench).target_epoch)


def test_a_new_target_costs_no_call_for_an_unchanged_member_and_few_for_the_record_of_another_one(
    bench: GroupBench,
) -> None:
    """A group may have 10,000 members; their target is computed, encoded and staged in one turn of the loop."""
    calls, records = [], []
    for count in (300, 600):
        while len(group(bench).members if bench.shard.tables.consumer else ()) < count:
            Client(bench, f"m{len(bench.log)}", ["t"]).join()
        calls.append(python_calls(Client(bench, f"late{count}", ["t"]).join))
        targets = [
            ConsumerRecord("g", Kind.TARGET_ASSIGNMENT, each, {bytes(16): (1,)}) for each in group(bench).members
        ]
        records.append(python_calls(partial(list, map(bench.shard.encode, targets))))
    assert calls[1] - calls[0] < 30
    assert records[1] - records[0] <= 5 * 300


def test_a_partition_moves_only_when_it_was_given_up(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"]), Client(bench, "b", ["t"])
    a.join()
    b.join()
    assert b.owned == set()
    assert group(bench).members["b"].assignment.state is MemberState.UNRELEASED_PARTITIONS
    a.beat(report=False)  # is told to give up two, and does not say that it did
    b.beat()
    assert b.owned == set()
    assert group(bench).state is ConsumerGroupState.RECONCILING
    a.beat()
    b.beat()
    assert sorted(a.owned | b.owned) == [("t", number) for number in range(4)]
    assert (len(a.owned), len(b.owned)) == (2, 2)
    assert (a.epoch, b.epoch) == (3, 3)


def test_a_member_that_does_not_give_up_is_put_out_after_its_rebalance_timeout(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"], rebalance_ms=2_000), Client(bench, "b", ["t"])
    a.join()
    b.join()
    a.beat(report=False)
    for _ in range(4):
        bench.advance(500)
        a.beat(report=False)
        b.beat()
    assert a.code is ErrorCode.UNKNOWN_MEMBER_ID
    settle(b)
    assert len(b.owned) == 4


def test_silence_ends_a_session_and_only_that(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"]), Client(bench, "b", ["t"])
    a.join()
    b.join()
    settle(a, b)
    bench.advance(44_999)
    b.beat()
    bench.advance(1)
    assert list(group(bench).members) == ["b"]
    settle(b)
    assert len(b.owned) == 4
    assert list(bench.replayed().tables.consumer["g"].members) == ["b"]


def test_two_members_that_die_at_once_make_one_step(bench: GroupBench) -> None:
    clients = [Client(bench, name, ["t"]) for name in "abc"]
    for client in clients:
        client.join()
    settle(*clients)
    bench.advance(30_000)
    clients[0].beat()
    epoch = group(bench).epoch.epoch
    bench.advance(20_000)
    assert list(group(bench).members) == ["a"]
    assert group(bench).epoch.epoch == epoch + 1


def test_a_new_coordinator_knows_members_and_gives_them_a_whole_session(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"]), Client(bench, "b", ["t"])
    a.join()
    b.join()
    settle(a, b)
    before = (a.owned, b.owned, a.epoch)
    bench.advance(44_000)
    bench.fail_over()
    bench.advance(44_000)
    settle(a, b)
    assert (a.owned, b.owned, a.epoch) == before
    bench.advance(50_000)
    assert group(bench).is_empty


def test_a_failover_in_the_middle_of_a_rebalance_loses_nothing(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"]), Client(bench, "b", ["t"])
    a.join()
    b.join()
    a.beat(report=False)
    bench.fail_over()
    settle(a, b)
    assert (len(a.owned), len(b.owned)) == (2, 2)


def test_the_rebalance_deadline_outlives_the_coordinator(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"], rebalance_ms=2_000), Client(bench, "b", ["t"])
    a.join()
    b.join()
    a.beat(report=False)
    bench.fail_over()
    bench.advance(2_000)
    assert list(group(bench).members) == ["b"]


def test_an_append_that_fails_changes_nothing(bench: GroupBench) -> None:
    a = Client(bench, "a", ["t"])
    a.join()
    members, epoch = dict(group(bench).members), group(bench).epoch
    bench.append_fails = True
    with pytest.raises(BrokerError):
        Client(bench, "b", ["t"]).join()
    with pytest.raises(BrokerError):
        a.leave()
    bench.append_fails = False
    assert (group(bench).members, group(bench).epoch) == (members, epoch)
    assert [group(bench).owner(b"t".ljust(16, b"."), number) for number in range(4)] == ["a"] * 4


def test_topics_that_grow_bump_the_epoch_at_the_next_heartbeat(bench: GroupBench) -> None:
    a = Client(bench, "a", ["t"])
    a.join()
    bench.image = image(t=6, u=3)
    a.beat()
    assert (a.epoch, len(a.owned)) == (3, 6)
    bench.image = image(t=6, u=7)  # another topic's business
    a.beat()
    assert a.epoch == 3


def test_the_target_waits_for_the_assignment_interval(bench: GroupBench) -> None:
    bench.consumers = replace(bench.consumers, assignment_interval_ms=1_000)
    a, b = Client(bench, "a", ["t"]), Client(bench, "b", ["t"])
    a.join()
    b.join()
    assert (b.epoch, group(bench).state) == (2, ConsumerGroupState.ASSIGNING)
    bench.advance(999)
    b.beat()
    assert b.epoch == 2
    bench.advance(1)
    b.beat()
    assert b.epoch == 3


def test_a_full_group_takes_nobody_new_and_keeps_its_members(bench: GroupBench) -> None:
    bench.consumers = replace(bench.consumers, size_max=1)
    a, b = Client(bench, "a", ["t"]), Client(bench, "b", ["t"])
    a.join()
    b.join()
    assert b.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    a.join()
    assert a.code is ErrorCode.NONE


def test_static_members_keep_what_they_had(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"], instance="one"), Client(bench, "b", ["t"], instance="two")
    a.join()
    b.join()
    settle(a, b)
    owned, epoch = a.owned, group(bench).epoch
    a.leave(epoch=-2)
    bench.fail_over()
    again = Client(bench, "a2", ["t"], instance="one")
    again.join()
    assert (again.owned, group(bench).epoch) == (owned, epoch)
    a.beat()
    assert a.code is ErrorCode.FENCED_INSTANCE_ID
    again.leave(epoch=-2)
    bench.advance(44_000)
    b.beat()
    bench.advance(2_000)  # its session is over: away for good
    settle(b)
    assert len(b.owned) == 4


def test_expressions_are_looked_up_and_forgotten_with_their_last_member(bench: GroupBench) -> None:
    a, b = Client(bench, "a", [], regex="u.*"), Client(bench, "b", [], regex="u.*")
    a.join()
    assert a.owned == set()
    found = {"u.*": ResolvedRegex(("u",), 1, WALL_MS)}
    bench.release(bench.commit(bench.shard.store_resolved("g", found)))
    a.beat()
    assert a.owned == {("u", number) for number in range(3)}
    b.join()
    settle(a, b)
    assert len(b.owned) == 1
    assert bench.replayed().tables.consumer["g"].regexes == group(bench).regexes == found
    a.leave()
    assert group(bench).regexes == found
    b.leave()
    assert group(bench).regexes == {}
    assert group(bench).regex_subscribers == {}
    assert bench.replayed().tables.consumer["g"].regexes == {}


def test_an_expression_that_does_not_compile_changes_nothing(bench: GroupBench) -> None:
    a = Client(bench, "a", [], regex="(")
    a.join()
    assert a.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "g" not in bench.shard.tables.consumer
    assert bench.log == []


def test_commits_are_fenced_by_epoch_and_assignment(bench: GroupBench) -> None:
    a, b = Client(bench, "a", ["t"]), Client(bench, "b", ["t"])
    a.join()
    b.join()
    settle(a, b)
    theirs, ours = min(b.owned)[1], min(a.owned)[1]

    def commit(partition: int, epoch: int, *, version: int = 9, producer_id: int | None = None) -> ErrorCode:
        record = OffsetRecord("g", "t", partition, CommittedOffset(1, -1, "", WALL_MS))
        return bench.offset(record, member_id="a", generation=epoch, version=version, producer_id=producer_id)

    assert commit(ours, 3) is ErrorCode.NONE
    assert commit(ours, 2) is ErrorCode.NONE  # it has had it since
    assert commit(theirs, 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(ours, 4) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(ours, 3, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(theirs, 2, producer_id=7) is ErrorCode.ILLEGAL_GENERATION
    assert commit(ours, 3, producer_id=7) is ErrorCode.NONE
    bench.shard.group("g").check_fetch("a", 3)
    bench.shard.group("g").check_fetch(None, -1)
    with pytest.raises(BrokerError) as caught:
        bench.shard.group("g").check_fetch("a", 2)
    assert caught.value.code is ErrorCode.STALE_MEMBER_EPOCH
    a.leave()
    assert commit(ours, 3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_consumer_groups_expire_and_then_the_group(bench: GroupBench) -> None:
    a = Client(bench, "a", ["t"])
    a.join()
    for topic in ("t", "u"):
        record = OffsetRecord("g", topic, 0, CommittedOffset(1, -1, "", WALL_MS))
        assert bench.offset(record, member_id="a", generation=2) is ErrorCode.NONE
    bench.now_ms = 8 * DAY_MS
    a.beat()
    # What the group still reads is kept, whatever its age.
    assert bench.expired() == [OffsetRecord("g", "u", 0, None)]
    a.leave()
    assert bench.expired()[0] == OffsetRecord("g", "t", 0, None)
    assert "g" not in bench.shard.tables.consumer


def test_an_empty_classic_group_that_is_joined_between_two_slices_of_its_expiry_keeps_the_other_offsets(
    bench: GroupBench,
) -> None:
    """Its offsets expired from the moment when it became empty, also those that the new member has just committed."""
    (member_id,) = bench.stable(1)
    for partition in range(2 * CHUNK):
        record = OffsetRecord("g", "t", partition, CommittedOffset(1, -1, "", WALL_MS))
        assert bench.offset(record, member_id=member_id, generation=1) is ErrorCode.NONE
    bench.leave((member_id, None))
    bench.advance(8 * DAY_MS)
    slices = bench.shard.expired(bench.at)
    _, first = next(slices)
    assert len(first) == CHUNK
    bench.shard.stage(first, None)
    Client(bench, "a", ["t"]).join()
    assert "g" in bench.shard.tables.consumer
    assert [records for _, records in slices if records] == []
    assert bench.shard.offsets.get("g", "t", 2 * CHUNK - 1) is not None


def test_pending_offsets_keep_an_empty_group(bench: GroupBench) -> None:
    a = Client(bench, "a", ["t"])
    a.join()
    record = OffsetRecord("g", "t", 0, CommittedOffset(1, -1, "", WALL_MS))
    assert bench.offset(record, member_id="a", generation=2, producer_id=7) is ErrorCode.NONE
    a.leave()
    bench.now_ms = 8 * DAY_MS
    assert bench.expired() == []
    bench.marker(7, commit=False)
    tombstones = list(group(bench).tombstones())
    assert bench.expired() == tombstones


def test_deleting_an_empty_group_leaves_nothing_in_the_log(bench: GroupBench) -> None:
    a = Client(bench, "a", ["t"], regex="u.*")
    a.join()
    with pytest.raises(BrokerError) as caught:
        bench.shard.delete_group("g")
    assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    bench.commit(bench.shard.delete_group("g"))
    loaded = bench.replayed()
    assert (loaded.tables.consumer, loaded.tables.classic) == ({}, {})


def test_a_group_known_by_its_offsets_becomes_a_consumer_group(bench: GroupBench) -> None:
    record = OffsetRecord("g", "t", 0, CommittedOffset(5, -1, "", WALL_MS))
    assert bench.offset(record) is ErrorCode.NONE
    assert "g" in bench.shard.tables.classic
    a = Client(bench, "a", ["t"])
    a.join()
    for shard in (bench.shard, bench.replayed()):
        assert "g" not in shard.tables.classic
        assert "a" in shard.tables.consumer["g"].members
        assert shard.offsets.get("g", "t", 0) is not None


def test_describing_and_listing(bench: GroupBench) -> None:
    Client(bench, "a", ["t"]).join()
    described = describe_consumers(bench.shard, "g")
    assert (described.group_state, described.group_epoch, described.assignor_name) == ("Stable", 2, "uniform")
    assert [each.group_type for each in list_groups(bench.shard, frozenset(), frozenset({"consumer"}))] == ["consumer"]
    assert list_groups(bench.shard, frozenset(), frozenset({"classic"})) == []
    assert list_groups(bench.shard, frozenset({"empty"}), frozenset()) == []
    with pytest.raises(BrokerError) as caught:
        describe_consumers(bench.shard, "h")
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_requests_that_break_the_rules() -> None:
    good: dict[str, Any] = {
        "group_id": "g",
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    check_heartbeat(ConsumerGroupHeartbeatRequest(**good), 1, ("uniform",))
    check_heartbeat(ConsumerGroupHeartbeatRequest(**{**good, "member_id": ""}), 0, ("uniform",))
    breaches: list[dict[str, Any]] = [
        {"group_id": ""},
        {"member_id": ""},
        {"member_epoch": -3},
        {"rebalance_timeout_ms": -1},
        {"subscribed_topic_names": None},
        {"topic_partitions": None},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -2},
        {"subscribed_topic_names": ["t"] * (SUBSCRIPTION_NAMES_MAX + 1)},
    ]
    for wrong in breaches:
        with pytest.raises(BrokerError) as caught:
            check_heartbeat(ConsumerGroupHeartbeatRequest(**{**good, **wrong}), 1, ("uniform",))
        assert caught.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(BrokerError) as caught:
        check_heartbeat(ConsumerGroupHeartbeatRequest(**good, server_assignor="range"), 1, ("uniform",))
    assert caught.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR


TOPICS = [["t"], ["t", "u"], ["u"], ["u", "missing"], []]


class NotWalked(dict[str, ConsumerMember]):
    """Members that a decision may only look up."""

    def _refuse(self, *_: object) -> Any:
        raise AssertionError("a decision walks all members")

    __iter__ = items = keys = values = _refuse


@pytest.mark.parametrize("topics", [["t"], ["u"], ["t", "u"]])
def test_a_join_between_two_targets_walks_no_members(bench: GroupBench, topics: list[str]) -> None:
    bench.consumers = ConsumerSettings(assignment_interval_ms=60_000)
    Client(bench, "a", ["t"]).join()
    group(bench).members = NotWalked(group(bench).members)
    Client(bench, "b", topics, assignor="range").join()
    assert group(bench).epoch.epoch == 3
    assert group(bench).topic_names() == {"t", *topics}
    assert group(bench).topic_names(without=("a",)) == set(topics)


def test_a_member_that_leaves_is_compared_with_no_others(bench: GroupBench) -> None:
    """Whether only members of the classic protocol remain is known at the first other one."""
    bench.consumers = ConsumerSettings(assignment_interval_ms=60_000)
    clients = [Client(bench, f"member-{number}", ["t"]) for number in range(20)]
    for client in clients:
        client.join()
    looked_at = 0

    class Counted(dict[str, ConsumerMember]):
        def values(self) -> Any:
            nonlocal looked_at
            for member in super().values():
                looked_at += 1
                yield member

    group(bench).members = Counted(group(bench).members)
    clients[7].leave()
    assert len(group(bench).members) == 19
    assert looked_at == 1


def test_most_votes_choose_the_assignor_and_the_first_one_configured_if_there_are_equally_many(
    bench: GroupBench,
) -> None:
    protocol, chosen = bench.shard.tables.consumer_protocol, bench.consumers
    Client(bench, "a", ["t"], assignor="range").join()
    assert protocol.assignor(group(bench), chosen) == "range"
    Client(bench, "b", ["t"], assignor="uniform").join()
    assert protocol.assignor(group(bench), chosen) == chosen.assignors[0] == "uniform"
    member = group(bench).members["b"]
    changed = member._replace(metadata=member.metadata._replace(server_assignor="range"))
    assert protocol.assignor(group(bench), chosen, changed) == "range"


class Lives(RuleBasedStateMachine):
    """Members come, change their minds, go silent, lose answers; coordinators and topics change."""

    @initialize()
    def begin(self) -> None:
        self.bench = GroupBench(GroupSettings())
        self.bench.image = image(t=4, u=3)
        self.clients: list[Client] = []
        self.count = 0

    @rule(topics=st.sampled_from(TOPICS), assignor=st.sampled_from([None, None, "range"]), static=st.booleans())
    def come(self, topics: list[str], assignor: str | None, static: bool) -> None:
        if len(self.clients) < 5:
            self.count += 1
            client = Client(
                self.bench,
                f"m{self.count}",
                topics,
                rebalance_ms=20_000,
                assignor=assignor,
                instance=f"i{self.count}" if static else None,
            )
            client.join()
            self.clients.append(client)

    @rule(number=st.integers(0, 4), report=st.booleans(), lost=st.booleans())
    def beat(self, number: int, report: bool, lost: bool) -> None:
        if number < len(self.clients):
            self.clients[number].beat(report=report, lost=lost)

    @rule(number=st.integers(0, 4), topics=st.sampled_from(TOPICS))
    def change(self, number: int, topics: list[str]) -> None:
        if number < len(self.clients):
            self.clients[number].subscribe(topics)

    @rule(number=st.integers(0, 4), epoch=st.sampled_from([-1, -1, -2]))
    def go(self, number: int, epoch: int) -> None:
        if number < len(self.clients):
            client = self.clients[number]
            client.leave(epoch=epoch if client.instance else -1)
            if epoch == -2 and client.instance and client.code is ErrorCode.NONE:
                self.count += 1
                back = Client(
                    self.bench, f"m{self.count}", client.topics, rebalance_ms=20_000, instance=client.instance
                )
                back.join()
                self.clients.append(back)
            self.clients.remove(client)

    @rule(number=st.integers(0, 4))
    def die(self, number: int) -> None:
        if number < len(self.clients):
            # What a dead client thought it owned counts no more.
            self.clients.pop(number)

    @rule(counts=st.sampled_from([{"t": 4, "u": 3}, {"t": 5, "u": 3}, {"t": 5}, {"u": 3}]))
    def topics(self, counts: dict[str, int]) -> None:
        self.bench.image = image(**counts)

    @rule(duration_ms=st.sampled_from([100, 5_000, 30_000, 50_000]))
    def wait(self, duration_ms: int) -> None:
        self.bench.advance(duration_ms)

    @rule()
    def fail_over(self) -> None:
        self.bench.fail_over()

    @rule()
    def settle(self) -> None:
        """Left in peace, everyone gets there: every partition of a subscribed topic has a reader."""
        self.bench.advance(50_000)  # the dead are gone; so are the living, who come back
        for _ in range(12):
            for client in self.clients:
                client.beat()
        living = [client for client in self.clients if client.code is ErrorCode.NONE]
        wanted = {
            (name, number)
            for client in living
            for name in client.topics
            for number in range(self.bench.image.partition_count(name))
        }
        owned = [pair for client in living for pair in client.owned]
        assert sorted(owned) == sorted(wanted)
        found = self.bench.shard.tables.consumer.get("g")
        assert found is None or found.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY)

    @invariant()
    def one_owner(self) -> None:
        owned = [pair for client in self.clients if client.is_member for pair in client.owned]
        assert len(owned) == len(set(owned)), "two members read one partition"

    @invariant()
    def the_log_tells_it_all(self) -> None:
        live, loaded = self.bench.shard.tables.consumer, self.bench.replayed().tables.consumer
        assert list(live) == list(loaded)
        for name, here in live.items():
            there = loaded[name]
            assert dict(here.members) == dict(there.members)
            assert (here.target, here.regexes) == (there.target, there.regexes)
            assert (here.epoch, here.target_epoch) == (there.epoch, there.target_epoch)
            holders = {pair: m.member_id for m in here.members.values() for pair in m.assignment.holds()}
            assert all(here.owner(*pair) == holder for pair, holder in holders.items())
            metadata = [member.metadata for member in here.members.values()]
            assert here.subscriptions == there.subscriptions == Counter(each.subscription for each in metadata)
            assert here.votes == Counter(each.server_assignor for each in metadata if each.server_assignor is not None)


TestLives = Lives.TestCase

TestLives.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
