"""Three brokers, clients and the exactly-once copy on the simulated loop, through crashes, partitions and lost power.

After every event `Watch` holds the nodes' memory against what they must agree on; at the end the judge holds what clients see
against what they were promised. `BARNABAS_SEEDS=17:18 pytest tests/simulation/test_cluster.py` runs one seed again.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from barnabas.client.types import TransactionVersion
from barnabas.loggers import TRACE
from barnabas.testing.simulation.clock import SimRng
from barnabas.testing.simulation.network import LATENCY
from barnabas.testing.simulation.world import World
from barnabas.testing.world.pipe import Flow
from tests.support.simulation.brokers import FLUSH, converged, make_brokers
from tests.support.simulation.cluster import Watch, bootstrap
from tests.support.simulation.cluster_chaos import ClusterChaos, Power
from tests.support.simulation.workload import Broker, Journal, Membership, churner, copier, feeder, judge, observer

pytestmark = pytest.mark.simulation

SEEDS = range(*map(int, os.environ.get("BARNABAS_SEEDS", "0:3").split(":")))
SOAK_SEEDS = range(10_000, 11_000)
CLEANED_SEEDS = range(*map(int, os.environ.get("BARNABAS_CLEANED_SEEDS", "0:1").split(":")))
CLEANING = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0",
    "log.cleaner.delete.retention.ms": "20000",
    "log.roll.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}


async def quiet(world: World, journal: Journal, brokers: dict[str, Broker], *, abort_one_in: int) -> None:
    """Nothing breaks."""
    for name, broker in brokers.items():
        world.machine(name).start(broker)
    fed = world.machine("feeder").start(feeder(journal, records=60, pause_s=0.5, burst_max=6))
    world.machine("worker").start(copier(journal, pause_s=0.01, abort_one_in=abort_one_in))
    world.machine("observer").start(observer(journal))
    await fed
    await judge(world, journal)
    await converged(brokers)


@dataclass
class Conditions:
    """What a seed's world is like, drawn from the seed alone. Whose power may fail is the seed modulo 3."""

    power: Power
    settings: dict[str, str]
    workers: int
    membership: Membership
    version: TransactionVersion | None
    padding_max: int
    flow: Flow
    churn: bool

    @classmethod
    def of(cls, seed: int) -> Conditions:
        rng = SimRng(seed, "conditions")
        power = list(Power)[seed % 3]
        settings = dict(FLUSH) if power is Power.OFF else {}
        if rng.randrange(2):
            settings["log.roll.ms"] = "3000"
        if rng.randrange(3) == 0:
            settings["metadata.log.max.record.bytes.between.snapshots"] = "20000"
        several = rng.randrange(3) == 0
        return cls(
            power=power,
            settings=settings,
            workers=3 if several else 1,
            membership=list(Membership)[rng.randrange(2 if several else 3)],
            version=(1, 2, 2, None)[rng.randrange(4)],
            padding_max=(0, 20_000, 20_000, 60_000)[rng.randrange(4)],
            flow=Flow(latency_s=0.06, jitter_s=0.04) if rng.randrange(8) == 0 else LATENCY,
            churn=rng.randrange(3) == 0,
        )


async def crashes(world: World, journal: Journal, conditions: Conditions, faults: int, records: int) -> None:
    """Brokers and workers die, links break, disks fail, while the copy goes on."""
    brokers = make_brokers(**conditions.settings)
    watch = Watch(world, brokers, cleaned=conditions.settings.get("log.cleaner.enable") == "true")
    workers = {
        f"worker-{number}": copier(
            journal,
            pause_s=0.02,
            abort_one_in=5,
            membership=conditions.membership,
            transaction_version=conditions.version,
            number=number,
        )
        for number in range(1, conditions.workers + 1)
    }
    for name, broker in brokers.items():
        world.machine(name).start(broker)
    fed = world.machine("feeder").start(
        feeder(journal, records=records, pause_s=0.5, burst_max=12, padding_max=conditions.padding_max)
    )
    for name, program in workers.items():
        world.machine(name).start(program)
    world.machine("observer").start(observer(journal))
    if conditions.churn:
        world.machine("churner").start(churner(journal))
    await ClusterChaos(world, brokers, watch, workers, power=conditions.power).run(faults)
    world.machine("churner").kill()
    await fed
    await judge(world, journal, workers=list(workers))
    await converged(brokers)


class Run(NamedTuple):
    """What one world came to."""

    digest: str  # of its trace
    faults: int
    transactions: int
    hours: float  # of virtual time


def run_crashes(seed: int, faults: int = 20, records: int = 300, /, **settings: str) -> Run:
    """One world of crashes. A failure names the seed."""
    journal = Journal(bootstrap=bootstrap())
    conditions = Conditions.of(seed)
    conditions.settings.update(settings)
    with World(seed, flow=conditions.flow) as world:
        world.run(crashes(world, journal, conditions, faults, records), time_limit_s=7200)
        return Run(world.trace.digest, faults, journal.committed + journal.aborted, world.loop.time() / 3600)


@pytest.mark.parametrize("abort_one_in", [6, 1 << 30])
def test_a_quiet_cluster(abort_one_in: int) -> None:
    journal = Journal(bootstrap=bootstrap())
    brokers = make_brokers()
    with World(1) as world:
        watch = Watch(world, brokers)
        world.run(quiet(world, journal, brokers, abort_one_in=abort_one_in), time_limit_s=3600)
    assert journal.failures == []
    assert journal.committed > 10
    assert (journal.aborted > 0) == (abort_one_in == 6)  # none that nobody asked for
    assert watch.checks > 1000
    assert len([ledger for ledger in watch.ledgers.values() if ledger.end > 0]) > 8


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_of_a_cluster(seed: int) -> None:
    run_crashes(seed)


@pytest.mark.parametrize("seed", CLEANED_SEEDS)
def test_crashes_while_the_coordinators_logs_are_cleaned(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """On every replica in its own time, with tombstones and markers that go within the run."""
    with caplog.at_level("INFO", logger="barnabas.kafka.log.LogCleaner"):
        run_crashes(seed, **CLEANING)
    assert len([record for record in caplog.records if "Cleaner run: " in record.getMessage()]) > 10


def test_one_seed_one_history_under_any_hash_seed_and_log_level() -> None:
    program = (
        "import logging; logging.getLogger('barnabas').setLevel({level})\n"
        "from tests.simulation.test_cluster import run_crashes; print(run_crashes(2, 3, 60).digest)"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(level=level)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # lines of the log
            text=True,
        )
        for hash_seed, level in (("0", logging.ERROR), ("4711", TRACE))
    ]
    digests = [run.communicate()[0].strip() for run in runs]
    assert digests[0] == digests[1] != ""


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::10])
def test_a_thousand_clusters(first: int, record_property: Callable[[str, object], None]) -> None:
    runs = [run_crashes(seed) for seed in range(first, first + 10)]
    record_property("faults", sum(run.faults for run in runs))
    record_property("transactions", sum(run.transactions for run in runs))
    record_property("hours", sum(run.hours for run in runs))
