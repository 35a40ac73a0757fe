"""Mutation quotas: tokens for partitions, which clients are refused, and what decisions answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.controller.core.topics import create_partitions, create_topics, delete_topics
from barnabas.broker.image.image import MetadataDelta, MetadataImage, QuotaEntity
from barnabas.broker.quotas.mutations import MutatingClient, MutationPermits, MutationQuotas
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicState,
)
from barnabas.work import Work, finished
from tests.support.broker.metadata_images import cluster, replayed, view

CREATE, DELETE, WIDEN = 19, 20, 37
ALICE = (("user", "alice"),)


class Limited:
    """A client that may change one partition in a second; its bucket holds eleven."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.quotas = MutationQuotas(lambda: self.now_ms)
        delta = MetadataDelta()
        delta.quotas[ALICE] = None
        self.quotas.on_image(MetadataImage(quotas={ALICE: {"controller_mutation_rate": 1.0}}), delta)

    def permits(self, api_key: int = CREATE, version: int = 7, user: str = "alice") -> MutationPermits:
        found = self.quotas.permits(MutatingClient(user, "app", api_key, version))
        assert found is not None
        return found


def test_quotas_of_very_many_entities_apply_in_slices() -> None:
    later: list[Work] = []
    quotas = MutationQuotas(lambda: 0, in_slices=later.append)
    users: list[QuotaEntity] = [(("user", f"u{number}"),) for number in range(1_000)]

    def publish(changed: list[QuotaEntity], rate: float) -> None:
        image = MetadataImage(quotas={user: {"controller_mutation_rate": rate} for user in users})
        quotas.on_image(image, MetadataDelta(quotas=dict.fromkeys(changed)))

    def mutated(user: int) -> int:
        """The throttle time after 22 partitions; a bucket holds those of 11 seconds."""
        return quotas.meter.mutated(f"u{user}", "app", 22, 0)

    publish(users, 1.0)
    (work,) = later
    assert mutated(999) == 0
    next(work)
    assert mutated(999) == 11_000
    assert mutated(0) == 0
    publish(users[1:2], 0.5)  # the rest of the work takes the latest image
    assert len(later) == 1
    finished(work)
    assert (mutated(0), mutated(1)) == (33_000, 33_000)
    publish(users[2:3], 1.0)
    assert mutated(2) == 11_000
    assert len(later) == 1


def create(image: MetadataImage, permits: MutationPermits, *counts: int, **fields: Any) -> Any:
    topics = [
        CreatableTopic(name=f"t{number}", num_partitions=count, replication_factor=1)
        for number, count in enumerate(counts)
    ]
    return create_topics(replace(view(image), permits=permits), CreateTopicsRequest(topics=topics, **fields))


def test_topics_are_created_until_the_bucket_is_overdrawn() -> None:
    limited = Limited()
    permits = limited.permits()
    answer = create(cluster((1,)), permits, 10, 5, 1).answer
    assert [each.error_code for each in answer.topics] == [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert permits.throttle_ms == 4_000
    limited.now_ms = 1_500
    assert permits.throttle_ms == 2_500, "less the time since then"
    with pytest.raises(BrokerError):
        limited.permits().take(1)
    limited.now_ms = 4_000
    limited.permits().take(1)


@pytest.mark.parametrize(("api_key", "first"), [(CREATE, 6), (DELETE, 5), (WIDEN, 3)])
def test_clients_of_earlier_versions_are_only_throttled(api_key: int, first: int) -> None:
    limited = Limited()
    limited.permits(api_key, first).take(12)
    with pytest.raises(BrokerError) as refused:
        limited.permits(api_key, first).take(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    earlier = limited.permits(api_key, first - 1)
    earlier.take(1)
    assert earlier.throttle_ms == 2_000


def test_a_refused_topic_writes_nothing_and_a_wrong_one_takes_nothing() -> None:
    limited = Limited()
    decision = create(cluster((1,)), limited.permits(), 12, 1)
    assert sorted(replayed(cluster((1,)), decision.records).topics_by_name) == ["t0"]
    again = Limited()
    create(cluster((1,)), again.permits(), -7)
    again.permits().take(12)


def test_deleted_and_added_partitions_count() -> None:
    limited = Limited()
    image = replayed(cluster((1,)), create(cluster((1,)), limited.permits(), 3, 2).records)
    limited.now_ms = 1_000_000
    wider = replace(view(image), permits=limited.permits(WIDEN, 3))
    widened = [CreatePartitionsTopic(name="t0", count=13, assignments=None)]
    assert create_partitions(wider, CreatePartitionsRequest(topics=widened)).answer.results[0].error_code == 0
    permits = limited.permits(DELETE, 6)
    states = [DeleteTopicState(name=name) for name in ("t0", "t1")]
    answer = delete_topics(replace(view(image), permits=permits), states).answer
    assert [each.error_code for each in answer.responses] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert permits.throttle_ms == 2_000


def test_others_have_no_limit() -> None:
    limited = Limited()
    assert limited.quotas.permits(None) is None
    limited.permits(user="bob").take(1_000_000)
    delta = MetadataDelta()
    delta.quotas[ALICE] = None
    limited.quotas.on_image(MetadataImage(), delta)
    assert limited.quotas.permits(MutatingClient("alice", "", CREATE, 7)) is None
