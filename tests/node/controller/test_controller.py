"""The controller in a node: grouping, order, commits before answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from barnabas.broker.controller.controller import DECISION_UNITS
from barnabas.broker.controller.core.decision import ClusterView, MetadataDecision
from barnabas.broker.image.image import MetadataDelta, MetadataImage
from barnabas.broker.image.records import (
    BeginTransactionRecord,
    ConfigRecord,
    MetadataRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from barnabas.broker.node.node import Node
from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind
from barnabas.broker.quorum import snapshot_writer
from barnabas.broker.quorum.core.snapshots import list_snapshots
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.internal_topics import CLUSTER_METADATA_FOLDER
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.testing.world.disks import FaultyMemoryDisk
from barnabas.work import UNITS_PER_SLICE, Work
from tests.support.broker.nodes import Nodes
from tests.support.waiting import until

T = TypeVar("T")


def creation(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    )


def batches(node: Node) -> list[list[str]]:
    """The types of the records of the metadata log, batch by batch."""
    data = node.log_dirs.main.disk.read(f"{CLUSTER_METADATA_FOLDER}/{0:020}.log")
    return [
        [type(decode_record(record.value or b"")).__name__ for record in decode_records(data, position, header)]
        for position, header in iter_batches(data)
        if not header.is_control
    ]


async def test_a_new_cluster_begins_with_kafkas_records(node: Node) -> None:
    first, second, third, fourth = batches(node)
    assert first == ["BeginTransactionRecord", *["FeatureLevelRecord"] * 4, "ConfigRecord", "EndTransactionRecord"]
    assert (second, third) == (["RegisterBrokerRecord"], ["RegisterControllerRecord"])
    assert fourth == ["BrokerRegistrationChangeRecord"]
    assert node.image.features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "transaction.version": 2,
    }
    assert node.image.cluster_config == {"min.insync.replicas": "1"}
    assert node.image.brokers[1].epoch == 8  # LeaderChange 0, bootstrap 1–7
    assert not node.image.brokers[1].fenced
    assert node.image.brokers[1].directories == (node.directory_id,)


async def test_an_answer_comes_when_the_change_is_synced_and_in_the_image(node: Node) -> None:
    synced: list[int] = []
    log = node.quorum
    answered: list[tuple[int, int]] = []

    def done(answer: Any) -> None:
        answered.append((node.image.partition_count("a"), log.high_watermark))

    before = log.high_watermark
    node.controller.create_topics(creation("a", partitions=3), done)
    assert (answered, log.log_end_offset) == ([], before)  # decided at the end of the wake-up
    await until(lambda: log.log_end_offset > before)
    assert (answered, node.image.partition_count("a"), synced) == ([], 0, [])  # appended, not yet committed
    await until(lambda: answered)
    assert answered == [(3, before + 4)]
    replica = node.replicas.leader("a", 2)
    assert (replica.leader_epoch, replica.is_leader) == (0, True)


async def test_requests_of_one_wake_up_see_one_another_and_share_a_sync(node: Node) -> None:
    answers: list[Any] = []
    images: list[tuple[MetadataImage, MetadataDelta]] = []

    def on_image(_former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        images.append((image, delta))

    node.current_image.subscribe(on_image)
    node.controller.create_topics(creation("a"), answers.append)
    node.controller.create_topics(creation("a", "b"), answers.append)
    node.controller.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")]), answers.append)
    node.controller.ensure_topic("c", answers.append)
    await until(lambda: len(answers) == 4)
    assert [topic.error_code for topic in answers[0].topics] == [0]
    assert [topic.error_code for topic in answers[1].topics] == [ErrorCode.TOPIC_ALREADY_EXISTS, 0]
    assert [topic.error_code for topic in answers[2].responses] == [0]
    assert answers[3] is None
    assert len(images) == 1
    assert list(images[0][0].topics_by_name) == ["b", "c"]


async def test_answers_keep_their_order_also_when_nothing_is_written(node: Node) -> None:
    order: list[str] = []
    node.controller.create_topics(creation("a"), lambda _: order.append("written"))
    node.controller.request(DeleteTopicsRequest(), lambda _: order.append("nothing"))
    await until(lambda: len(order) == 2)
    node.controller.request(DeleteTopicsRequest(), lambda _: order.append("alone"))
    await until(lambda: len(order) == 3)
    assert order == ["written", "nothing", "alone"]


async def test_a_request_that_no_version_of_the_controller_can_carry_is_answered_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt would end in the same way: the answer came after the time limit of the request."""
    sent: list[Any] = []

    def send(_request: object, done: Callable[[object], None], **_options: object) -> None:
        sent.append(done)
        done(PeerError(PeerErrorKind.UNSUPPORTED, "the controller serves CreateTopics up to version 4"))

    class Controller:
        def to(self, *_address: object, **_names: object) -> Any:
            return SimpleNamespace(send=send)

    monkeypatch.setattr(node.controller, "_here", None)
    monkeypatch.setattr(node.controller, "_peers", Controller())
    monkeypatch.setattr(node.quorum, "leader_endpoint", lambda: (2, "there", 9093))
    answers: list[Any] = []
    node.controller.create_topics(creation("a"), answers.append)
    assert [answer.code for answer in answers] == [ErrorCode.UNSUPPORTED_VERSION]
    assert len(sent) == 1


async def test_producer_ids_come_in_blocks_of_a_thousand_and_never_again(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    blocks: list[int | BrokerError] = []
    for _ in range(2):
        node.lifecycle.allocate_producer_ids(blocks.append)
    await until(lambda: len(blocks) == 2)
    await node.stop()
    node = await nodes.start(disk)
    node.lifecycle.allocate_producer_ids(blocks.append)
    await until(lambda: len(blocks) == 3)
    assert blocks == [0, 1000, 2000]
    assert node.image.next_producer_id == 3000


async def test_internal_topics_are_made_with_their_own_settings(node: Node) -> None:
    done: list[BrokerError | None] = []
    for name in ("__transaction_state", "__consumer_offsets", "plain", "plain"):
        node.controller.ensure_topic(name, done.append)  # the last two are asked for before either is there
    await until(lambda: len(done) == 4)
    assert done == [None] * 4
    assert node.image.partition_count("__transaction_state") == 50
    assert node.image.topic_config("__transaction_state") == {
        "unclean.leader.election.enable": "false",
        "compression.type": "uncompressed",
        "cleanup.policy": "compact",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
    }
    assert node.image.topic_config("__consumer_offsets") == {
        "segment.bytes": "104857600",
        "compression.type": "producer",
        "cleanup.policy": "compact",
    }
    assert node.image.partition_count("plain") == 1


async def test_a_topic_that_cannot_be_made_says_why(nodes: Nodes) -> None:
    node = await nodes.start(offsets_topic_replication_factor="3")
    done: list[Any] = []
    node.controller.ensure_topic("a/b", done.append)
    node.controller.ensure_topic("__consumer_offsets", done.append)
    await until(lambda: len(done) == 2)
    assert sorted(error.code for error in done) == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    ]
    assert not node.image.topics_by_name


async def test_an_internal_topic_that_cannot_be_made_is_logged_once_for_each_reason(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its clients only see COORDINATOR_NOT_AVAILABLE, which they retry without end."""
    node = await nodes.start(offsets_topic_replication_factor="2", transaction_state_log_replication_factor="3")
    done: list[Any] = []
    for name in ("__consumer_offsets", "__transaction_state", "__consumer_offsets", "a/b"):
        node.controller.ensure_topic(name, done.append)
    await until(lambda: len(done) == 4)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Internal topic")]
    assert len(lines) == 2
    assert "topic=__consumer_offsets error=INVALID_REPLICATION_FACTOR" in lines[0]
    assert "topic=__transaction_state error=INVALID_REPLICATION_FACTOR" in lines[1]


async def test_a_thousand_partitions_are_one_batch(node: Node) -> None:
    answers: list[Any] = []
    before = len(batches(node))
    node.controller.create_topics(creation("wide", partitions=1000), answers.append)
    await until(lambda: answers)
    assert answers[0].topics[0].num_partitions == 1000
    assert node.replicas.leader("wide", 999).partition_epoch == 0
    assert len(batches(node)) == before + 1


async def test_dynamic_settings_take_effect_where_they_are_asked_for(node: Node) -> None:
    def request(kind: int, name: str, key: str, value: str) -> IncrementalAlterConfigsRequest:
        config = AlterableConfig(name=key, value=value)
        return IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])]
        )

    done: list[Any] = []
    node.controller.create_topics(creation("a"), done.append)
    await until(lambda: done)
    node.controller.alter_configs(request(4, "", "message.max.bytes", "5000"), done.append)
    await until(lambda: len(done) == 2)
    assert node.config.get_int("message.max.bytes") == 5000
    replica = node.replicas.leader("a", 0)
    assert replica.log.config.max_message_bytes == 5000
    node.controller.alter_configs(request(2, "a", "max.message.bytes", "6000"), done.append)
    await until(lambda: len(done) == 3)
    assert replica.log.config.max_message_bytes == 6000


async def test_settings_of_the_log_hold_from_the_first_moment_of_the_next_start(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    done: list[Any] = []

    def set_max(view: ClusterView) -> MetadataDecision[None]:
        return MetadataDecision(None, [ConfigRecord(resource_type=4, name="message.max.bytes", value="7000")])

    assert node.quorum_controller is not None
    node.quorum_controller.submit(set_max, done.append)
    await until(lambda: done)
    await node.stop()
    node = await nodes.start(disk)
    assert node.config.get_int("message.max.bytes") == 7000


async def test_a_snapshot_is_taken_when_enough_was_written(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk, metadata_log_max_record_bytes_between_snapshots="3000")
    done: list[Any] = []
    node.controller.create_topics(creation("a", partitions=60), done.append)
    await until(lambda: list_snapshots(disk, CLUSTER_METADATA_FOLDER))
    await node.stop()
    # Without any log the snapshot alone brings the topics back.
    snapshot = list_snapshots(disk, CLUSTER_METADATA_FOLDER)[-1]
    disk.remove(f"{CLUSTER_METADATA_FOLDER}/00000000000000000000.log")
    node = await nodes.start(disk)
    assert node.image.partition_count("a") == 60
    assert node.quorum.log_start_offset == snapshot.end_offset


async def test_a_snapshot_is_taken_when_replaying_the_log_costs_much_more_than_the_snapshot(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_writer, "SNAPSHOT_FROM_BYTES", 3_000)
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    done: list[Any] = []
    node.controller.create_topics(creation("a", partitions=100), done.append)
    await until(lambda: list_snapshots(disk, CLUSTER_METADATA_FOLDER))
    (first,) = list_snapshots(disk, CLUSTER_METADATA_FOLDER)
    await node.stop()
    # Each stop and start adds two records for each partition: more than 3,000 bytes, less than four snapshots.
    restarts = 1
    node = await nodes.start(disk)
    while not node.quorum.snapshots.due() and list_snapshots(disk, CLUSTER_METADATA_FOLDER) == [first]:
        await node.stop()
        node = await nodes.start(disk)
        restarts += 1
        assert restarts < 10
    assert 1 < restarts < 10
    await until(lambda: list_snapshots(disk, CLUSTER_METADATA_FOLDER) != [first])


async def test_a_disk_that_fails_under_the_log_stops_the_node_and_nobody_is_answered(nodes: Nodes) -> None:
    for call in ("pwrite", "sync"):
        disk = FaultyMemoryDisk()
        node = await nodes.start(disk)
        answered: list[Any] = []
        disk.fail(call, path=f"*{CLUSTER_METADATA_FOLDER if call == 'pwrite' else ''}*")
        node.controller.create_topics(creation("a"), answered.append)
        await until(partial(getattr, node, "failure"))
        assert isinstance(node.failure, OSError)
        assert answered == []
    assert len(nodes.failures) == 2
    nodes.failures.clear()


async def test_after_the_end_requests_are_refused(nodes: Nodes) -> None:
    node = await nodes.start()
    await node.stop()
    refused: list[Any] = []
    node.controller.create_topics(creation("a"), refused.append)
    assert refused[0].code is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_answered_survives_a_kill(nodes: Nodes, seed: int) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    answered: list[Any] = []
    sent: list[str] = []
    for number in range(10):
        sent.append(f"t{number}")
        node.controller.create_topics(creation(sent[-1]), answered.append)
        if number % (seed + 2) == 0:
            await until(lambda: len(answered) == len(sent))
    count = len(answered)
    node.kill()
    disk.crash(node.reactor.rng)
    node = await nodes.start(disk)
    assert list(node.image.topics_by_name)[:count] == [f"t{number}" for number in range(count)]


async def test_a_controller_that_is_not_active_says_so(node: Node) -> None:
    controller = node.quorum_controller
    assert controller is not None
    answered: list[Any] = []
    controller.handle(creation("a"), answered.append)
    controller.on_not_leading()  # before it was decided
    controller.handle(creation("a"), answered.append)
    assert [error.code for error in answered] == [ErrorCode.NOT_CONTROLLER] * 2


async def test_what_was_appended_and_not_committed_is_refused_with_the_leadership(node: Node) -> None:
    controller = node.quorum_controller
    assert controller is not None
    answered: list[Any] = []
    end = node.quorum.log_end_offset
    controller.handle(creation("a"), answered.append)
    await until(lambda: node.quorum.log_end_offset > end)
    assert answered == []
    controller.on_not_leading()
    assert [error.code for error in answered] == [ErrorCode.NOT_CONTROLLER]


async def test_an_open_metadata_transaction_is_aborted_by_the_next_controller(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    half: list[MetadataRecord] = [BeginTransactionRecord(name="half"), TopicRecord(name="lost", topic_id=b"t" * 16)]
    node.quorum.append([encode_record(record) for record in half])
    await until(lambda: node.loader.in_transaction)
    assert node.image.topic("lost") is None
    await node.stop()
    node = await nodes.start(disk)
    assert not node.loader.in_transaction
    assert node.image.topic("lost") is None
    assert ["AbortTransactionRecord"] in batches(node)


async def test_a_bug_in_a_decision_is_answered_and_harms_no_other(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    controller = node.quorum_controller
    assert controller is not None
    answered: list[Any] = []

    def buggy(view: ClusterView) -> MetadataDecision[None]:
        raise KeyError("a bug")

    controller.submit(buggy, answered.append)
    controller.handle(creation("a"), answered.append)
    await until(lambda: len(answered) == 2)
    assert answered[0].code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert answered[1].topics[0].error_code == 0
    assert "Decision of the controller failed" in caplog.text


async def test_the_controller_names_a_setting_without_effect_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = []
    request = creation("one", "two")
    for topic in request.topics:
        topic.configs = [CreatableTopicConfig(name="preallocate", value="true")]
    node.controller.request(request, answers.append)
    await until(lambda: bool(answers))
    said = [record.message for record in caplog.records if "no effect" in record.message]
    assert said == [
        "Changed setting: setting 'preallocate' of topic 'one' and 1 more has no effect here: segments grow as they are written"
    ]
    assert node.image.topic_config("one") == {"preallocate": "true"}


async def test_decisions_wait_for_others_as_long_as_the_linger_says(nodes: Nodes) -> None:
    node = await nodes.start(**{"controller.quorum.append.linger.ms": "300"})
    began_ms = node.reactor.clock.monotonic_ms()
    answers: list[Any] = []
    node.controller.request(creation("one"), answers.append)
    node.controller.request(creation("two"), answers.append)
    await until(lambda: len(answers) == 2)
    assert node.reactor.clock.monotonic_ms() - began_ms >= 300
    assert None not in (node.image.topic("one"), node.image.topic("two"))


def noting(answer: T, decided: list[object]) -> Callable[[ClusterView], MetadataDecision[T]]:
    """A decision without records that adds its answer to `decided`."""

    def decide(_view: ClusterView) -> MetadataDecision[T]:
        decided.append(answer)
        return MetadataDecision(answer)

    return decide


async def test_many_short_decisions_take_several_turns(node: Node) -> None:
    controller = node.quorum_controller
    assert controller is not None
    decided: list[object] = []
    answers: list[object] = []
    for number in range(100):
        controller.submit(noting(number, decided), answers.append)
    of_turns = []
    while len(answers) < 100:
        before = len(decided)
        await asyncio.sleep(0)
        of_turns.append(len(decided) - before)
    assert max(of_turns) == UNITS_PER_SLICE // DECISION_UNITS
    assert answers == decided == list(range(100))


async def test_a_heartbeat_does_not_wait_for_a_long_decision(node: Node) -> None:
    controller = node.quorum_controller
    assert controller is not None
    story: list[str | BrokerError] = []

    def long(_view: ClusterView) -> Work:
        while len(story) < 1:
            yield UNITS_PER_SLICE
        return MetadataDecision("long")

    controller.submit(long, story.append)
    controller.submit(lambda _: MetadataDecision("behind"), story.append)
    await until(lambda: node.slices.busy)
    controller.submit(lambda _: MetadataDecision("heartbeat"), story.append, between=True)
    await until(lambda: len(story) == 3)
    assert story == ["heartbeat", "long", "behind"]


async def test_a_heartbeat_does_not_wait_for_many_requests(node: Node) -> None:
    """Ten clients that ask for a thousand missing topics each kept a broker's heartbeats waiting until its session ended."""
    controller = node.quorum_controller
    assert controller is not None
    decided: list[object] = []
    requests = [f"request {number}" for number in range(100)]
    for name in requests:
        controller.submit(noting(name, decided))
    heartbeats = ["heartbeat", "next heartbeat"]
    for name in heartbeats:
        controller.submit(noting(name, decided), between=True)
    await until(lambda: len(decided) == 102)
    assert decided == [*heartbeats, *requests], "in order: a broker's newer heartbeat is decided last"


async def test_a_lost_leadership_answers_a_long_decision(node: Node) -> None:
    controller = node.quorum_controller
    assert controller is not None
    answers: list[Any] = []

    def endless(_view: ClusterView) -> Work:
        while True:
            yield UNITS_PER_SLICE

    controller.submit(endless, answers.append)
    await until(lambda: node.slices.busy)
    controller.on_not_leading()
    assert [answer.code for answer in answers] == [ErrorCode.NOT_CONTROLLER]
    await until(lambda: not node.slices.busy)
