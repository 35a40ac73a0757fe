"""The names of series that known boards and alert rules ask a broker for, and those of them that only a JVM or a container has.

Found by docs/grafana/board_metrics.py. Facts, from the repository strimzi/strimzi-kafka-operator, folder packaging/examples/metrics: grafana-dashboards/strimzi-kafka.json,
strimzi-kraft.json and strimzi-kafka-exporter.json, prometheus-install/prometheus-rules/prometheus-kafka-rules.yaml, as of commit 8541da1e; and from danielqsj/kafka_exporter,
kafka_exporter_overview.json (Grafana's board 7589), as of commit 953e2f17.
"""

from __future__ import annotations

# strimzi-kafka.json; by the labels that its panels select.
KAFKA_BOARD = {
    "kafka_cluster_partition_atminisr": ("topic", "partition"),
    "kafka_cluster_partition_replicascount": ("topic", "partition"),
    "kafka_cluster_partition_underminisr": ("topic", "partition"),
    "kafka_controller_controllerstats_uncleanleaderelections_total": (),
    "kafka_controller_kafkacontroller_activecontrollercount": (),
    "kafka_controller_kafkacontroller_offlinepartitionscount": (),
    "kafka_log_log_size": ("topic", "partition"),
    "kafka_network_socketserver_networkprocessoravgidle_percent": (),
    "kafka_server_brokertopicmetrics_bytesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_bytesout_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedproducerequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_messagesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalproducerequests_total": ("topic",),
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": (),
    "kafka_server_kafkaserver_linux_disk_read_bytes": (),
    "kafka_server_kafkaserver_linux_disk_write_bytes": (),
    "kafka_server_replicamanager_leadercount": (),
    "kafka_server_replicamanager_partitioncount": (),
    "kafka_server_replicamanager_underreplicatedpartitions": (),
    "kafka_server_socket_server_metrics_connection_count": ("listener",),
    "process_open_fds": (),
}

# strimzi-kraft.json.
KRAFT_BOARD = {
    "kafka_server_raftchannelmetrics_incoming_byte_total": (),
    "kafka_server_raftchannelmetrics_outgoing_byte_total": (),
    "kafka_server_raftchannelmetrics_request_total": (),
    "kafka_server_raftchannelmetrics_response_total": (),
    "kafka_server_raftmetrics_append_records_rate": (),
    "kafka_server_raftmetrics_commit_latency_avg": (),
    "kafka_server_raftmetrics_current_epoch": (),
    "kafka_server_raftmetrics_current_leader": (),
    "kafka_server_raftmetrics_current_state": ("current_state",),
    "kafka_server_raftmetrics_current_vote": (),
    "kafka_server_raftmetrics_fetch_records_rate": (),
    "kafka_server_raftmetrics_high_watermark": (),
    "kafka_server_raftmetrics_log_end_offset": (),
    "process_open_fds": (),
}

# strimzi-kafka-exporter.json and board 7589; sums over all brokers have them, not each broker.
EXPORTER_BOARDS = {
    "kafka_broker_info": ("id", "address"),
    "kafka_cluster_partition_atminisr": ("topic", "partition"),
    "kafka_cluster_partition_underminisr": ("topic", "partition"),
    "kafka_consumergroup_current_offset": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_lag": ("consumergroup", "topic", "partition"),
    "kafka_topic_partition_current_offset": ("topic", "partition"),
    "kafka_topic_partition_in_sync_replica": ("topic", "partition"),
    "kafka_topic_partition_leader_is_preferred": ("topic", "partition"),
    "kafka_topic_partition_oldest_offset": ("topic", "partition"),
    "kafka_topic_partition_replicas": ("topic", "partition"),
    "kafka_topic_partition_under_replicated_partition": ("topic", "partition"),
    "kafka_topic_partitions": ("topic",),
}

# prometheus-kafka-rules.yaml.
ALERTED = {
    "kafka_controller_kafkacontroller_activecontrollercount": (),
    "kafka_controller_kafkacontroller_offlinepartitionscount": (),
    "kafka_log_logmanager_offlinelogdirectorycount": (),
    "kafka_server_replicamanager_underminisrpartitioncount": (),
    "kafka_server_replicamanager_underreplicatedpartitions": (),
}

# On no board, but in use: kafka-metrics.yaml makes them of Kafka's beans, and alert rules of others ask for them.
WATCHED = {
    "kafka_controller_controllereventmanager_eventqueuetimems": ("quantile",),
    "kafka_controller_kafkacontroller_activebrokercount": (),
    "kafka_controller_kafkacontroller_fencedbrokercount": (),
    "kafka_controller_kafkacontroller_metadataerrorcount": (),
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount": (),
    "kafka_network_requestmetrics_requests_total": ("request", "version"),
    "kafka_network_requestmetrics_totaltimems": ("request", "quantile"),
    "kafka_server_brokermetadatametrics_last_applied_record_lag_ms": (),
    "kafka_server_brokermetadatametrics_last_applied_record_offset": (),
    "kafka_server_brokermetadatametrics_metadata_apply_error_count": (),
    "kafka_server_brokermetadatametrics_metadata_load_error_count": (),
    "kafka_server_delayedoperationpurgatory_purgatorysize": ("delayedOperation",),
    "kafka_server_kafkaserver_brokerstate": (),
    "kafka_server_raftmetrics_number_unknown_voter_connections": (),
    "kafka_server_replicamanager_atminisrpartitioncount": (),
    "kafka_server_replicamanager_isrexpands_total": (),
    "kafka_server_replicamanager_isrshrinks_total": (),
    "kafka_server_replicamanager_offlinereplicacount": (),
}

# What these boards and rules ask for and no broker without a JVM, in no container, has.
NOT_SERVED = frozenset(
    {
        "container_cpu_usage_seconds_total",
        "container_last_seen",
        "container_memory_usage_bytes",
        "jvm_gc_collection_seconds_count",
        "jvm_gc_collection_seconds_sum",
        "jvm_memory_used_bytes",
        "jvm_threads_current",
        "kubelet_volume_stats_available_bytes",
        "kubelet_volume_stats_capacity_bytes",
        "up",
    }
)
