"""kafka_exporter's series of three brokers: each one once, and sums that are the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from barnabas.client import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer, TopicPartition
from barnabas.testing import Cluster
from tests.support.broker.cluster_scrapes import total, until
from tests.support.broker.scrapes import Scrape

PARTITIONS = 6
GROUPS = [f"group-{number}" for number in range(12)]
LAG = "kafka_consumergroup_lag"
EXPORTER = ("kafka_brokers", "kafka_broker_info", "kafka_topic_partition", "kafka_consumergroup_")


@pytest.fixture
def kafka() -> Iterator[Cluster]:
    config = {"metrics.listen": "127.0.0.1:0", "broker.session.timeout.ms": 6_000}  # a busy machine fences no broker
    with Cluster(brokers=3, config=config) as cluster:
        yield cluster


async def filled(kafka: Cluster, admin: Admin) -> dict[int, int]:
    """Writes a topic without replicas: each partition is on one broker alone. Returns the end offsets."""
    await admin.create_topics([NewTopic("orders", PARTITIONS, 1), NewTopic("bills", 2, 3)])
    ends = {number: 10 + 3 * number for number in range(PARTITIONS)}
    async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number, end in ends.items():
            for _ in range(end):
                await producer.send("orders", b"tea", partition=number)
    return ends


async def committed(admin: Admin) -> dict[str, dict[int, int]]:
    """Commits offsets of some partitions in every group; returns them."""
    commits: dict[str, dict[int, int]] = {}
    for at, group in enumerate(GROUPS):
        commits[group] = {number: at % (number + 5) for number in range(PARTITIONS) if (at + number) % 4}
        offsets = {TopicPartition("orders", number): OffsetAndMetadata(one) for number, one in commits[group].items()}
        await admin.alter_group_offsets(group, offsets)
    return commits


def duplicates(found: list[Scrape]) -> dict[tuple[str, object], int]:
    """The series of kafka_exporter that more than one broker exports."""
    counts = Counter(
        (name, labels)
        for each in found
        for name in each.names
        if name.startswith(EXPORTER)
        for labels in each.rows(name)
    )
    return {key: count for key, count in counts.items() if count > 1}


def leaderless(found: list[Scrape]) -> set[str]:
    """The partitions of `orders` without a leader."""
    return {
        dict(labels)["partition"]
        for each in found
        for labels, value in each.rows("kafka_topic_partition_leader").items()
        if value == -1 and dict(labels)["topic"] == "orders"
    }


async def test_a_sum_over_all_brokers_is_the_truth(kafka: Cluster) -> None:
    async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        ends = await filled(kafka, admin)
        commits = await committed(admin)
        lags = [
            end - offsets[number] if number in offsets else -1
            for offsets in commits.values()
            for number, end in ends.items()
        ]
        found = until(
            kafka,
            (1, 2, 3),
            lambda all_: (
                sum(len(each.rows("kafka_consumergroup_lag_sum")) for each in all_) == len(GROUPS)
                and total(all_, LAG) == sum(lags)
                and total(all_, "kafka_topic_partitions", topic="orders") == PARTITIONS  # the controller has it
            ),
        )
        assert sum(bool(each.rows("kafka_consumergroup_lag_sum")) for each in found) > 1  # coordinators
        assert duplicates(found) == {}
        for group, offsets in commits.items():
            for number, end in ends.items():
                labels = {"consumergroup": group, "topic": "orders", "partition": str(number)}
                offset = offsets.get(number)
                assert total(found, "kafka_consumergroup_current_offset", **labels) == (
                    -1 if offset is None else offset
                )
                assert total(found, LAG, **labels) == (-1 if offset is None else end - offset)
            lag_sum = sum(ends[number] - offset for number, offset in offsets.items())
            assert total(found, "kafka_consumergroup_lag_sum", consumergroup=group, topic="orders") == lag_sum
            assert sum(one.lag for one in (await admin.group_lag(group)).values()) == lag_sum
            offset_sum = sum(offsets.values()) - (PARTITIONS - len(offsets))
            assert total(found, "kafka_consumergroup_current_offset_sum", consumergroup=group) == offset_sum
        assert total(found, "kafka_topic_partition_current_offset", topic="orders") == sum(ends.values())
        assert total(found, "kafka_topic_partition_oldest_offset", topic="orders") == 0
        assert total(found, "kafka_topic_partition_replicas", topic="bills") == 6
        assert total(found, "kafka_topic_partition_in_sync_replica", topic="bills") == 6
        assert total(found, "kafka_topic_partition_leader_is_preferred", topic="bills") == 2
        assert total(found, "kafka_topic_partition_under_replicated_partition") == 0
        assert total(found, "kafka_brokers") == 3
        info = [dict(labels) for each in found for labels in each.rows("kafka_broker_info")]
        assert sorted(one["id"] for one in info) == ["1", "2", "3"]
        assert all(one["address"].rpartition(":")[2].isdigit() for one in info)

        # What is written and committed later is in the next scrape of an idle second.
        async with Consumer(
            "orders", bootstrap_servers=kafka.bootstrap_servers, group_id=GROUPS[0], auto_offset_reset="earliest"
        ) as consumer:
            left = sum(ends.values()) - sum(commits[GROUPS[0]].values())
            while left:
                left -= sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
            await consumer.commit()
            until(
                kafka,
                (1, 2, 3),
                lambda all_: (
                    total(all_, "kafka_consumergroup_lag_sum", consumergroup=GROUPS[0]) == 0
                    and total(all_, "kafka_consumergroup_members", consumergroup=GROUPS[0]) == 1
                ),
            )
        for group in GROUPS[1:]:
            await admin.delete_group(group)
        await admin.delete_topics(["bills"])
        until(
            kafka,
            (1, 2, 3),
            lambda all_: (
                sum(len(each.rows("kafka_consumergroup_members")) for each in all_) == 1
                and sum(len(each.rows(LAG)) for each in all_) == PARTITIONS
                and not any("bills" in each.labels("kafka_topic_partitions", "topic") for each in all_)
            ),
        )


async def test_a_partition_without_a_leader(kafka: Cluster) -> None:
    """The active controller exports it; the lag of its groups is unknown, and so is their sum."""
    async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        ends = await filled(kafka, admin)
        everything = {TopicPartition("orders", number): OffsetAndMetadata(0) for number in range(PARTITIONS)}
        for group in GROUPS:
            await admin.alter_group_offsets(group, everything)
        until(kafka, (1, 2, 3), lambda all_: total(all_, LAG) == sum(ends.values()) * len(GROUPS))
    kafka.kill(3)

    def known(all_: list[Scrape]) -> int:
        """The sum of the end offsets of the partitions that have a leader."""
        return sum(end for number, end in ends.items() if str(number) not in leaderless(all_))

    found = until(
        kafka,
        (1, 2),
        lambda all_: (
            total(all_, "kafka_brokers") == 2
            and sum(len(each.rows("kafka_topic_partition_leader")) for each in all_ if each.total("kafka_brokers")) > 0
            and sum(len(each.rows("kafka_consumergroup_current_offset_sum")) for each in all_) == len(GROUPS)
            and not any(each.rows("kafka_consumergroup_lag_sum") for each in all_)
            and total(all_, "kafka_topic_partition_under_replicated_partition", topic="bills") == 2
            and len(leaderless(all_)) == 2
            and total(all_, LAG) == known(all_) * len(GROUPS)
            and not duplicates(all_)  # between two scrapes a partition may get another leader
        ),
    )
    for number in leaderless(found):
        assert total(found, "kafka_topic_partition_replicas", topic="orders", partition=number) == 1
        assert not any(
            each.get("kafka_topic_partition_current_offset", topic="orders", partition=number) for each in found
        )
