"""Random schedules of a quorum: lost, repeated and reordered messages, partitions, kills, power cuts, snapshots.

After every event: one leader an epoch, one vote an epoch and voter, epochs that never go back, equal committed prefixes. In the
end, when everything works again, the members agree, and nothing that was committed is missing.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support.bench.quorum import Members


def disturb(members: Members, number: int) -> None:
    rng = members.rng
    nodes = list(members.all)
    choice = rng.randrange(12)
    if choice < 4:
        for index in range(rng.randrange(1, 4)):
            members.append(b"%d-%d" % (number, index))
    elif choice == 4:
        members.cut = {pair for pair in itertools.permutations(nodes, 2) if rng.random() < 0.3}
    elif choice == 5:
        alone = rng.choice(nodes)
        members.cut = {pair for pair in itertools.permutations(nodes, 2) if alone in pair}
    elif choice == 6:
        members.cut = set()
        members.lossy = 0.0
    elif choice == 7:
        members.lossy = rng.choice([0.02, 0.1, 0.3])
    elif choice == 8:
        member = members.all[rng.choice(nodes)]
        if member.alive:
            member.stop(power=rng.random() < 0.5)
    elif choice == 9:
        member = rng.choice(list(members.all.values()))
        if member.alive:
            members.snapshot(member)
    elif choice == 11:
        for _ in range(rng.randrange(1, 4)):
            members.append(b"%d-burst" % number)
            members.run(rng.randrange(6))
        for node in nodes if rng.random() < 0.5 else nodes[: len(nodes) // 2]:
            if members.all[node].alive:
                members.all[node].stop(power=True)
    elif choice == 10:
        leader = members.leader()
        if leader is not None and rng.random() < 0.5:
            leader.machine.resign(members.clock.time_ms)
            leader.after()
    for member in members.all.values():
        if not member.alive and rng.random() < 0.4:
            member.start()


@pytest.mark.parametrize("seed", range(40))
def test_a_quorum_in_bad_weather(seed: int) -> None:
    members = Members(seed, (3, 3, 3, 5, 2)[seed % 5], observers=seed % 3 == 0)
    members.start()
    for number in range(60):
        members.run(members.rng.choice([1, 5, 20, 100, 400, 1500]))
        disturb(members, number)
    members.cut, members.lossy = set(), 0.0
    for member in members.all.values():
        if not member.alive:
            member.start()
    members.run_until(members.settled, 20_000)
    members.append(b"last")
    members.run_until(members.settled, 5_000)
    assert any(value == b"last" for _, value in members.committed.values())
