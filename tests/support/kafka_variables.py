"""Variables of Kafka's container image: their names as settings, and those that testcontainers sets."""

from __future__ import annotations

# What KafkaDockerWrapper of Kafka 4.3.1 makes of each variable; tests/oracle/test_environment_diff.py asks it.
NAMES = {
    "KAFKA_NODE_ID": "node.id",
    "KAFKA_A___B__C_D": "a-b_c.d",
    "KAFKA_X____Y": "x-.y",
    "KAFKA_KAFKA_Z": "kafka.z",
    "KAFKA_LOWER_case": "lower.case",
    "KAFKA_LISTENER_NAME_EXT__1_SCRAM___SHA___256_SASL_JAAS_CONFIG": "listener.name.ext_1.scram-sha-256.sasl.jaas.config",
}
# testcontainers (Java, KafkaContainer for apache/kafka), with the listeners that its start script sets.
TESTCONTAINERS = {
    "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9092,BROKER://0.0.0.0:9093,CONTROLLER://0.0.0.0:9094",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:32768,BROKER://4f1c:9093",
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_NODE_ID": "1",
    "KAFKA_BROKER_ID": "1",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "9223372036854775807",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
