"""Random lives of a group: whatever members, time and coordinators do, the invariants of the protocol hold.

Members behave as clients may, not as they should: they send anything that their ids allow, at any time.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.settings import GroupSettings
from barnabas.errors import BrokerError
from tests.support.bench.group import GroupBench, Ticket

PROTOCOLS = [
    [("range", b"")],
    [("range", b"x"), ("sticky", b"")],
    [("sticky", b""), ("range", b"")],
    [("sticky", b"y")],
]
ANY_MEMBER = st.integers(0, 11)


class Group(RuleBasedStateMachine):
    """One group "g", the ids it has handed out, and every answer that is still owed."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), size_max=st.sampled_from([2, 4, 100]))
    def begin(self, delay_ms: int, size_max: int) -> None:
        self.bench = GroupBench(GroupSettings(initial_rebalance_delay_ms=delay_ms, size_max=size_max))
        self.ids: list[str] = ["ghost"]
        self.instances: dict[str, str | None] = {}
        self.tickets: list[Ticket] = []

    @property
    def group(self) -> ClassicGroup | None:
        return self.bench.shard.tables.classic.get("g")

    def learn(self, ticket: Ticket, instance: str | None) -> None:
        self.tickets.append(ticket)
        self.instances.setdefault("ghost", None)
        for response in ticket.responses:
            if response.member_id and response.member_id not in self.instances:
                self.ids.append(response.member_id)
                self.instances[response.member_id] = instance
        for member in self.group.members.values() if self.group else ():
            if member.member_id not in self.instances:
                self.ids.append(member.member_id)
                self.instances[member.member_id] = member.group_instance_id

    def pick(self, number: int) -> str:
        return self.ids[-1 - number % len(self.ids)]

    @rule(
        protocols=st.sampled_from(PROTOCOLS),
        instance=st.sampled_from([None, None, "one", "two"]),
        version=st.sampled_from([3, 8, 9]),
        session_ms=st.sampled_from([6_000, 30_000]),
    )
    def join_new(self, protocols: list[tuple[str, bytes]], instance: str | None, version: int, session_ms: int) -> None:
        ticket = self.bench.join(
            instance=instance, protocols=protocols, version=version, session_ms=session_ms, rebalance_ms=10_000
        )
        self.learn(ticket, instance)

    @rule(number=ANY_MEMBER, protocols=st.sampled_from(PROTOCOLS), session_ms=st.sampled_from([6_000, 30_000]))
    def rejoin(self, number: int, protocols: list[tuple[str, bytes]], session_ms: int) -> None:
        member_id = self.pick(number)
        instance = self.instances.get(member_id)
        ticket = self.bench.join(
            member_id, instance=instance, protocols=protocols, session_ms=session_ms, rebalance_ms=10_000
        )
        self.learn(ticket, instance)

    @rule(number=ANY_MEMBER, behind=st.integers(0, 1), fails=st.booleans())
    def sync(self, number: int, behind: int, fails: bool) -> None:
        if self.group is None:
            return
        members = [*self.group.members, "ghost"]
        member_id = members[number % len(members)]
        self.bench.append_fails = fails
        assignments = {m: f"{m}@{self.group.generation}".encode() for m in self.group.members}
        try:
            ticket = self.bench.sync(
                member_id, self.group.generation - behind, assignments, instance=self.instances.get(member_id)
            )
            self.tickets.append(ticket)
        except BrokerError:  # as the coordinator's shell does it
            self.bench.append_fails = False
            self.bench.release(self.bench.commit(self.bench.shard.rebalance(["g"], self.bench.at)))
        finally:
            self.bench.append_fails = False

    @rule()
    def everyone_rejoins(self) -> None:
        for member in list(self.group.members.values()) if self.group else ():
            if member.awaiting_join is None and self.group is not None:
                ticket = self.bench.join(
                    member.member_id,
                    instance=member.group_instance_id,
                    protocols=member.protocols,
                    session_ms=member.session_timeout_ms,
                    rebalance_ms=10_000,
                )
                self.learn(ticket, member.group_instance_id)

    @rule(order=st.permutations(range(4)), fails=st.booleans())
    def everyone_syncs(self, order: list[int], fails: bool) -> None:
        for number in order:
            self.sync(number, 0, fails)

    @rule(number=ANY_MEMBER)
    def heartbeat(self, number: int) -> None:
        if self.group is not None:
            member_id = self.pick(number)
            self.bench.heartbeat(member_id, self.group.generation, instance=self.instances.get(member_id))

    @rule(number=ANY_MEMBER, by_name=st.booleans())
    def leave(self, number: int, by_name: bool) -> None:
        member_id = self.pick(number)
        if self.group is not None:
            instance = self.instances.get(member_id)
            self.bench.leave(("", instance) if by_name and instance else (member_id, instance))

    @rule(duration_ms=st.sampled_from([0, 1_000, 6_000, 11_000, 400_000]))
    def wait(self, duration_ms: int) -> None:
        self.bench.advance(duration_ms)

    @rule()
    def fail_over(self) -> None:
        self.bench.fail_over()
        for reply in self.bench.refused:
            assert isinstance(reply, Ticket)
            assert not reply.answered
            reply.responses.append(None)
        self.bench.refused = []

    @invariant()
    def answered_at_most_once(self) -> None:
        assert all(len(ticket.responses) <= 1 for ticket in getattr(self, "tickets", ()))

    @invariant()
    def is_consistent(self) -> None:
        group = self.group if hasattr(self, "bench") else None
        if group is None:
            return
        members = group.members.values()
        assert group.awaiting_joins == sum(member.awaiting_join is not None for member in members)
        assert (group.leader_id in group.members) == bool(group.members)
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        assert set(group.static_members.values()) == {m.member_id for m in members if m.is_static}
        for name, count in group.protocol_counts.items():
            assert count == sum(any(n == name for n, _ in member.protocols) for member in members)
        assert set(group.pending_syncs) <= set(group.members)
        if group.state is not GroupState.PREPARING_REBALANCE:
            assert not group.awaiting_joins
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert all(member.awaiting_sync is None for member in members)
        deadlines = self.bench.shard.tables.deadlines
        if group.state is GroupState.PREPARING_REBALANCE:
            assert ("join", "g", "") in deadlines
        for member in members:
            if not member.keeps_session_while_waiting() and member.awaiting_join is None:
                assert ("session", "g", member.member_id) in deadlines

    @invariant()
    def log_tells_the_last_generation(self) -> None:
        group = self.group if hasattr(self, "bench") else None
        if group is None or group.state not in (GroupState.STABLE, GroupState.EMPTY):
            return
        recorded = self.bench.replayed().tables.classic["g"]
        assert (recorded.generation, recorded.state) == (group.generation, group.state)
        assert recorded.members.keys() == group.members.keys()
        for member_id, member in group.members.items():
            assert recorded.members[member_id].assignment == member.assignment

    def teardown(self) -> None:
        """In the end everybody is answered: nothing is parked for ever."""
        if hasattr(self, "bench"):
            self.bench.advance(4_000_000)
            assert all(ticket.answered for ticket in self.tickets)
            assert self.group is None or self.group.state is GroupState.EMPTY


Group.TestCase.settings = settings(max_examples=150, stateful_step_count=40, suppress_health_check=list(HealthCheck))
test_random_lives = Group.TestCase
