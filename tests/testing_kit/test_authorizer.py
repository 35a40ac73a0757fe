"""A cluster of the kit with an authorizer, whose nodes and clients are User:ANONYMOUS over PLAINTEXT."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.testing import Cluster

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def test_nodes_that_are_super_users_serve_transactions_and_administration() -> None:
    """Followers, markers, verification and forwarded requests pass between nodes; each is authorized."""
    with Cluster(brokers=3, config=CONFIG, topics={"orders": 6}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(60):
            producer.produce("orders", str(number), partition=number % 6)
        producer.commit_transaction(30)
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe(["orders"])
        found: list[bytes] = []
        while len(found) < 60:
            found += [each.value() or b"" for each in consumer.consume(60, 1.0)]
        consumer.close()
        assert sorted(found) == sorted(str(number).encode() for number in range(60))
        for address in kafka.bootstrap_servers.split(","):  # two of three brokers forward it
            admin = AdminClient({"bootstrap.servers": address})
            (done,) = admin.create_topics([NewTopic(f"by-{address.replace(':', '-')}", 1, 3)]).values()
            assert done.result(30) is None


def test_without_a_super_user_for_nodes_the_cluster_does_not_start() -> None:
    with pytest.raises(Exception, match=r"User:ANONYMOUS"), Cluster(3, config=CONFIG | {"super.users": "User:admin"}):
        pass
