"""Images from records: Kafka's own log and snapshot, transactions, deltas, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from barnabas.broker.image.image import EMPTY_IMAGE, RECOVERING, MetadataImage, difference
from barnabas.broker.image.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    ForeignRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityPart,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    decode_record,
)
from barnabas.broker.image.replay import ImageBuilder
from barnabas.broker.image.snapshot import snapshot_records
from barnabas.broker.quorum.core.snapshots import decode_snapshot
from barnabas.errors import InvariantViolated
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.work import finished
from tests.support.broker.metadata_images import changed, cluster, replayed, with_topic
from tests.support.broker.standalone import GOLDEN

A, B = bytes(15) + b"a", bytes(15) + b"b"


def test_kafkas_log_replayed_to_its_snapshot_is_kafkas_snapshot() -> None:
    data = (GOLDEN / "log.bin").read_bytes()
    log = ImageBuilder(EMPTY_IMAGE)
    for position, header in iter_batches(data):
        if header.base_offset >= 86:
            break
        if not header.is_control:
            for record in decode_records(data, position, header):
                log.replay(decode_record(record.value or b""))
    snapshot = ImageBuilder(EMPTY_IMAGE, of_snapshot=True)
    for value in decode_snapshot((GOLDEN / "snapshot-86-3.bin").read_bytes()):
        snapshot.replay(decode_record(value))
    ours, kafkas = (_in_one_order(builder.image()) for builder in (log, snapshot))
    assert ours == kafkas
    assert [topic.name for topic in ours.topics_by_name.values()] == ["orders", "more"]
    assert ours.topics_by_name["orders"].partitions[0].eligible_leader_replicas == (1,)
    assert ours.broker_config(1) == {"log.cleaner.threads": "2"}
    assert ours.feature("transaction.version") == 2


def _in_one_order(image: MetadataImage) -> MetadataImage:
    """Kafka's snapshots list features and foreign records in the order of its hash maps, and lack the ages of topics."""
    topics = [topic._replace(first_producer_id=0) for topic in image.topics_by_name.values()]
    brokers = {
        number: broker._replace(features=tuple(sorted(broker.features, key=lambda feature: feature.name)))
        for number, broker in image.brokers.items()
    }
    controllers = {
        number: changed(controller, features=sorted(controller.features, key=lambda feature: feature.name))
        for number, controller in image.controllers.items()
    }
    return replace(
        image,
        topics_by_name={topic.name: topic for topic in topics},
        topics_by_id={topic.topic_id: topic for topic in topics},
        brokers=brokers,
        controllers=controllers,
        foreign=tuple(sorted(image.foreign)),
    )


ACL = AccessControlEntryRecord(
    id=A,
    resource_type=2,
    resource_name="a",
    pattern_type=3,
    principal="User:u",
    host="*",
    operation=3,
    permission_type=3,
)
SCRAM = UserScramCredentialRecord(
    name="u", mechanism=1, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
)
TOKEN = DelegationTokenRecord(owner="User:u", requester="User:u", token_id="t", expiration_timestamp=7)


def quota(value: float, *, remove: bool = False) -> ClientQuotaRecord:
    parts = [
        QuotaEntityPart(entity_type="user", entity_name="u"),
        QuotaEntityPart(entity_type="client-id", entity_name=None),
    ]
    return ClientQuotaRecord(entity=parts, key="producer_byte_rate", value=value, remove=remove)


def busy_image() -> MetadataImage:
    image = with_topic(cluster((1, 2, 3)), "a", A, ([1, 2], [1, 2], 1), ([2, 3], [2], 2))
    image = with_topic(image, "b", B, ([3], [3], 3))
    return replayed(
        image,
        [
            ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="5"),
            PartitionChangeRecord(partition_id=1, topic_id=A, eligible_leader_replicas=[3], last_known_elr=[2]),
            ProducerIdsRecord(broker_id=1, next_producer_id=2000),
            ForeignRecord(99, 0, b"\x01\x63\x00future"),
            ACL,
            SCRAM,
            TOKEN,
            quota(5.0),
            BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=image.brokers[2].epoch, cordoned_log_dirs=[A]),
        ],
    )


def test_the_records_of_an_image_make_the_same_image() -> None:
    image = busy_image()
    builder = ImageBuilder(EMPTY_IMAGE)
    for record in snapshot_records(image):
        builder.replay(record)
    builder.advance(image.offset, image.epoch, image.timestamp_ms)
    assert builder.image() == image
    first = next(iter(snapshot_records(image)))
    assert isinstance(first, FeatureLevelRecord)
    assert first.name == "metadata.version"


def topics_of_three_ages() -> MetadataImage:
    image = with_topic(cluster(), "first", A, ([1], [1], 1))
    for name, next_producer_id in (("second", 1000), ("third", 4000)):
        image = replayed(image, [ProducerIdsRecord(broker_id=1, next_producer_id=next_producer_id)])
        image = with_topic(image, name, name.encode().ljust(16), ([1], [1], 1))
    return replayed(image, [ProducerIdsRecord(broker_id=1, next_producer_id=5000)])


def ages(image: MetadataImage) -> dict[str, int]:
    return {topic.name: topic.first_producer_id for topic in image.topics_by_name.values()}


def from_snapshot(records: Iterable[MetadataRecord]) -> MetadataImage:
    builder = ImageBuilder(EMPTY_IMAGE, of_snapshot=True)
    for record in records:
        builder.replay(record)
    return builder.image()


def test_a_topic_knows_which_producer_ids_are_older() -> None:
    image = topics_of_three_ages()
    assert ages(image) == {"first": 0, "second": 1000, "third": 4000}
    assert ages(replayed(image, [PartitionChangeRecord(partition_id=0, topic_id=A, leader=-1)])) == ages(image)
    again: list[MetadataRecord] = [RemoveTopicRecord(topic_id=A), TopicRecord(name="first", topic_id=B)]
    assert ages(replayed(image, again))["first"] == 5000
    after = replayed(image, [PartitionChangeRecord(partition_id=0, topic_id=A, leader_recovery_state=RECOVERING)])
    assert ages(after) == {"first": 5000, "second": 1000, "third": 4000}
    assert after.youngest_topic == after.topics_by_id[A]


def test_unclean_elections_are_counted_change_by_change() -> None:
    """Between two images a replica may join the ISR and then be elected, which is clean."""
    builder = ImageBuilder(topics_of_three_ages())
    for change in (
        PartitionChangeRecord(partition_id=0, topic_id=A, leader=1, isr=[1]),
        PartitionChangeRecord(partition_id=0, topic_id=A, isr=[1, 2]),
        PartitionChangeRecord(partition_id=0, topic_id=A, leader=2),
        PartitionChangeRecord(partition_id=0, topic_id=A, leader=-1, isr=[], eligible_leader_replicas=[1]),
        PartitionChangeRecord(partition_id=0, topic_id=A, leader=1, isr=[1]),
    ):
        builder.replay(change)
    before = builder.delta.unclean_elections
    builder.replay(PartitionChangeRecord(partition_id=0, topic_id=A, leader=3, isr=[3]))
    assert builder.delta.unclean_elections - before == 1
    assert before == 0


def test_a_snapshot_keeps_the_ages_of_topics() -> None:
    """Except those that are older than every producer id: its reader cannot know that."""
    loaded = from_snapshot(snapshot_records(topics_of_three_ages()))
    assert ages(loaded) == {"first": 5000, "second": 1000, "third": 4000}
    assert loaded.next_producer_id == 5000
    assert ages(from_snapshot(snapshot_records(loaded))) == ages(loaded)
    ascending = [
        record.next_producer_id for record in snapshot_records(loaded) if isinstance(record, ProducerIdsRecord)
    ]
    assert ascending == [1000, 4000, 5000], "Kafka refuses to load a lower one after a higher one"


def test_the_topics_of_a_snapshot_by_kafka_are_as_young_as_the_snapshot() -> None:
    image = topics_of_three_ages()
    kafkas = [record for record in snapshot_records(image) if not isinstance(record, ProducerIdsRecord)]
    loaded = from_snapshot([*kafkas, ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=5000)])
    assert set(ages(loaded).values()) == {5000}


def test_a_transaction_counts_as_a_whole_or_not_at_all() -> None:
    records: list[MetadataRecord] = [BeginTransactionRecord(), TopicRecord(name="a", topic_id=A)]
    builder = ImageBuilder(EMPTY_IMAGE)
    for record in records:
        builder.replay(record)
    assert builder.in_transaction
    assert builder.image().topics_by_name == {}
    builder.replay(AbortTransactionRecord())
    assert not builder.in_transaction
    assert builder.image().topics_by_name == {}
    for record in [*records, PartitionRecord(partition_id=0, topic_id=A, replicas=[1]), EndTransactionRecord()]:
        builder.replay(record)
    assert builder.image().partition_count("a") == 1


def test_the_base_image_stays_as_it_was() -> None:
    base = busy_image()
    before = repr(base)
    after = replayed(
        base,
        [
            RemoveTopicRecord(topic_id=B),
            PartitionChangeRecord(partition_id=0, topic_id=A, leader=2),
            ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value=None),
            FenceBrokerRecord(id=1, epoch=base.brokers[1].epoch),
            FeatureLevelRecord(name="group.version", feature_level=0),
            ForeignRecord(99, 0, b"\x01\x63\x00more"),
        ],
    )
    assert repr(base) == before
    assert after.topic("b") is None
    assert after.topic_by_id(B) is None
    assert after.topic_config("a") == {}
    assert after.brokers[1].fenced
    assert "group.version" not in after.features
    assert len(after.foreign) == 2
    changed, unchanged = after.topics_by_name["a"].partitions
    assert (changed.leader, changed.leader_epoch, changed.partition_epoch) == (2, 1, 1)
    assert unchanged == base.topics_by_name["a"].partitions[1]
    assert after.topics_by_name["a"] is after.topics_by_id[A]


def test_a_change_without_a_leader_leaves_the_leader_epoch() -> None:
    image = replayed(busy_image(), [PartitionChangeRecord(partition_id=0, topic_id=A, isr=[1])])
    partition = image.topics_by_name["a"].partitions[0]
    assert (partition.isr, partition.leader, partition.leader_epoch, partition.partition_epoch) == ((1,), 1, 0, 1)


def test_the_delta_says_what_changed_and_nothing_else() -> None:
    base = busy_image()
    builder = ImageBuilder(base)
    new = bytes(15) + b"n"
    for record in (
        TopicRecord(name="new", topic_id=new),
        PartitionRecord(partition_id=0, topic_id=new, replicas=[1], isr=[1], leader=1),
        PartitionChangeRecord(partition_id=1, topic_id=A, leader=3),
        RemoveTopicRecord(topic_id=B),
        ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="6"),
    ):
        builder.replay(record)
    delta = builder.delta
    assert list(delta.created) == [new]
    assert {topic.name for topic in delta.deleted.values()} == {"b"}
    assert {topic: list(numbers) for topic, numbers in delta.partitions.items()} == {new: [0], A: [1]}
    assert list(delta.configs) == [(2, "a")]
    assert not delta.brokers
    assert not delta.features
    assert not delta.empty
    assert ImageBuilder(base).delta.empty


def test_acls_credentials_tokens_and_quotas_are_changed_and_removed() -> None:
    base = busy_image()
    entity = (("client-id", None), ("user", "u"))
    assert base.acls[A].principal == "User:u"
    assert base.scram_credentials[1, "u"].iterations == 4096
    assert "stored" not in repr(base)
    assert base.delegation_tokens["t"].expiration_timestamp == 7
    assert base.quotas == {entity: {"producer_byte_rate": 5.0}}
    changed = replayed(base, [quota(6.0)])
    assert changed.quotas == {entity: {"producer_byte_rate": 6.0}}
    removals: list[MetadataRecord] = [
        RemoveAccessControlEntryRecord(id=A),
        RemoveUserScramCredentialRecord(name="u", mechanism=1),
        RemoveDelegationTokenRecord(token_id="t"),
        quota(0.0, remove=True),
    ]
    builder = ImageBuilder(base)
    for record in removals:
        builder.replay(record)
    after, delta = builder.image(), builder.delta
    assert (after.acls, after.scram_credentials, after.delegation_tokens, after.quotas) == ({}, {}, {}, {})
    keys = [list(delta.acls), list(delta.scram_credentials), list(delta.delegation_tokens), list(delta.quotas)]
    assert keys == [[A], [(1, "u")], ["t"], [entity]]
    assert not delta.empty
    assert finished(difference(base, after)) == delta


def test_a_topic_that_came_and_went_between_two_images_is_not_told() -> None:
    builder = ImageBuilder(EMPTY_IMAGE)
    for record in (
        TopicRecord(name="a", topic_id=A),
        PartitionRecord(partition_id=0, topic_id=A, replicas=[1]),
        RemoveTopicRecord(topic_id=A),
        TopicRecord(name="a", topic_id=B),
    ):
        builder.replay(record)
    assert list(builder.delta.created) == [B]
    assert not builder.delta.deleted
    assert builder.image().topic_id("a") == B


def test_a_deleted_topic_takes_its_settings_with_it() -> None:
    image = replayed(busy_image(), [RemoveTopicRecord(topic_id=A), TopicRecord(name="a", topic_id=bytes(15) + b"n")])
    assert image.partition_count("a") == 0
    assert image.topic_config("a") == {}


def test_eligible_leaders_of_one_topic_or_of_all_are_cleared() -> None:
    image = busy_image()
    for name, cleared in (("b", False), ("a", True), ("", True)):
        after = replayed(image, [ClearElrRecord(topic_name=name)]).topics_by_name["a"].partitions[1]
        assert (after.eligible_leader_replicas == ()) == cleared
        assert (after.last_known_elr == ()) == cleared


def test_min_isr_is_the_topics_else_the_clusters_but_never_above_the_replicas() -> None:
    image = busy_image()
    assert image.min_insync_replicas("a", 3, 1) == 1
    nobodys = replayed(image, [ConfigRecord(resource_type=4, name="min.insync.replicas", value=None)])
    assert nobodys.min_insync_replicas("a", 3, 2) == 2  # as the node itself is configured
    image = replayed(image, [ConfigRecord(resource_type=4, name="min.insync.replicas", value="2")])
    assert image.min_insync_replicas("a", 3, 1) == 2
    assert image.min_insync_replicas("a", 1, 1) == 1
    image = replayed(image, [ConfigRecord(resource_type=2, resource_name="a", name="min.insync.replicas", value="1")])
    assert image.min_insync_replicas("a", 3, 1) == 1


def test_brokers_are_fenced_unfenced_and_unregistered_by_their_epoch() -> None:
    image = cluster((1, 2))
    epoch = image.brokers[1].epoch
    assert [broker.broker_id for broker in image.alive_brokers()] == [1, 2]
    fenced = replayed(image, [FenceBrokerRecord(id=1, epoch=epoch)])
    assert [broker.broker_id for broker in fenced.alive_brokers()] == [2]
    assert replayed(fenced, [UnfenceBrokerRecord(id=1, epoch=epoch)]).brokers == image.brokers
    assert list(replayed(image, [UnregisterBrokerRecord(broker_id=1, broker_epoch=epoch)]).brokers) == [2]
    assert list(replayed(image, [RegisterBrokerRecord(broker_id=7, broker_epoch=50)]).brokers) == [1, 2, 7]


@pytest.mark.parametrize(
    "record",
    [
        TopicRecord(name="a", topic_id=B),
        PartitionRecord(partition_id=5, topic_id=A),
        PartitionRecord(partition_id=0, topic_id=bytes(16)),
        PartitionChangeRecord(partition_id=2, topic_id=A),
        PartitionChangeRecord(partition_id=-1, topic_id=A),
        RemoveTopicRecord(topic_id=bytes(16)),
        FenceBrokerRecord(id=1, epoch=999),
        UnfenceBrokerRecord(id=9, epoch=0),
        UnregisterBrokerRecord(broker_id=1, broker_epoch=0),
        EndTransactionRecord(),
        AbortTransactionRecord(),
    ],
)
def test_records_that_contradict_the_image_are_a_damaged_log(record: MetadataRecord) -> None:
    with pytest.raises(InvariantViolated):
        ImageBuilder(busy_image()).replay(record)
