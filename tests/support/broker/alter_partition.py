"""AlterPartition requests to the decisions of the controller, and their results."""

from __future__ import annotations

from typing import Any

from barnabas.broker.controller.core.isr import alter_partition
from barnabas.broker.image.image import MetadataImage
from barnabas.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponsePartition,
    BrokerState,
)
from tests.support.broker.metadata_images import view

TOPIC = bytes(15) + b"t"


def ask(image: MetadataImage, isr: tuple[int, ...] = (1, 2), broker: int = 1, **fields: Any) -> Any:
    epochs = fields.pop("epochs", {})
    wanted = AlterPartitionRequestPartition(
        new_isr_with_epochs=[
            BrokerState(broker_id=each, broker_epoch=epochs.get(each, image.brokers[each].epoch if each < 9 else -1))
            for each in isr
        ]
    )
    for name, value in fields.items():
        setattr(wanted, name, value)
    topic = AlterPartitionRequestTopic(topic_id=TOPIC, partitions=[wanted])
    return alter_partition(
        view(image),
        AlterPartitionRequest(broker_id=broker, broker_epoch=image.brokers[broker].epoch, topics=[topic]),
    )


def result(decision: Any) -> AlterPartitionResponsePartition:
    (topic,) = decision.answer.topics
    (partition,) = topic.partitions
    return partition  # type: ignore[no-any-return]  # of a decision of alter_partition
