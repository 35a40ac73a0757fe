"""A single broker and an exactly-once copy that crash: the world of tests/simulation/test_copy.py."""

from __future__ import annotations

from barnabas.client.types import TransactionVersion
from barnabas.testing.simulation.world import World
from tests.support.simulation.chaos import Chaos
from tests.support.simulation.workload import Broker, Journal, Membership, copier, feeder, judge, observer

FLUSH = {"log.flush.interval.messages": "1"}  # acknowledgements wait for the disk
SHORT_SEGMENTS = {"log.roll.ms": "3000"}


async def crashes(world: World, journal: Journal, *, flush: bool = True, faults: int = 20) -> None:
    """Broker and worker die, links break and doubles appear while the copy goes on.

    Even seeds: power may fail too, and every acknowledgement waits for the disk (flush.messages=1). Odd seeds: the broker
    is only killed or stopped, and Kafka's default holds, by which the page cache is safe enough.
    """
    power = world.seed % 2 == 0
    segments = SHORT_SEGMENTS if world.rng.randrange(2) else {}
    broker = Broker(**(FLUSH if power and flush else {}), **segments)
    membership = list(Membership)[world.rng.randrange(3)]
    version: TransactionVersion = 2 if world.rng.randrange(3) > 0 else 1
    copy = copier(journal, pause_s=0.02, abort_one_in=5, membership=membership, transaction_version=version)
    world.machine("broker").start(broker)
    fed = world.machine("feeder").start(feeder(journal, records=400, pause_s=0.3, burst_max=12, padding_max=20_000))
    world.machine("worker").start(copy)
    world.machine("observer").start(observer(journal))
    await Chaos(world, broker, copy, power=power).run(faults)
    await fed
    await judge(world, journal)
