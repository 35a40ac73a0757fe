"""Topics that a broker creates itself: internal topics, and automatically created ones."""

from __future__ import annotations

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.admin import CreatableTopic, CreatableTopicConfig


def topic_to_ensure(name: str, config: BrokerConfig) -> CreatableTopic:
    """The topic to create: an internal topic with its own settings and never fewer replicas, another with the cluster's defaults."""
    settings: dict[str, str] = {}
    partitions, replication_factor = -1, -1
    if name == GROUP_METADATA_TOPIC:
        partitions = config.get_int("offsets.topic.num.partitions")
        replication_factor = config.get_int("offsets.topic.replication.factor")
        settings = {
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
            "compression.type": "producer",
            "cleanup.policy": "compact",
        }
    elif name == TRANSACTION_STATE_TOPIC:
        partitions = config.get_int("transaction.state.log.num.partitions")
        replication_factor = config.get_int("transaction.state.log.replication.factor")
        settings = {
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
        }
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
