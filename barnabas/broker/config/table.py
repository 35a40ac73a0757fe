"""The configuration reference: every setting of nodes, topics, groups and client metrics of Kafka 4.3.1, and Barnabas' own.

A row: name, type, default, documentation, bounds, whether it is dynamic, and why it has no effect. `UNSERVED_KEYS` and `PREFIXES` say why a
setting of Kafka is not served. Defaults that differ from Kafka's: transaction.two.phase.commit.enable, controller.quorum.append.linger.ms,
socket.listen.backlog.size and the socket buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from barnabas.broker.config.certificate_names import check_mapping_rules
from barnabas.broker.config.kerberos_names import check_local_rules
from barnabas.broker.config.key import (
    DOUBLE_MAX,
    INT32_MAX,
    INT64_MAX,
    ConfigKey,
    at_least,
    between,
    boolean,
    check_overrides,
    double,
    gzip_level,
    host_and_port,
    integer,
    java_class,
    long,
    not_empty,
    one_of,
    password,
    several,
    short,
    some_of,
    string,
    throttled_replicas,
)

AUTHORIZER_CLASS: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# Values of replica.selector.class.
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SEGMENT_BYTES_MIN: Final = 1024 * 1024
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"

# Why settings have no effect.
_CONNECT: Final = "an attempt to connect to another node ends after 2 s"
_LOADED: Final = "logs are loaded 256 KiB at a time, so that the loop stays free"
_NO_RELOGIN: Final = "the Kerberos library gets new tickets from the keytab before they end"
_NO_TIERS: Final = "no tiered storage"
_ONE_LOOP: Final = "one event loop does this work"
_OPENSSL: Final = "TLS is OpenSSL's, Java's providers are not loaded"
_PURGE: Final = "waiting lists purge themselves"

# All settings of topics, groups and client metrics are dynamic.
_TOPICS: Final = {
    "cleanup.policy": several(
        ("delete",), "What becomes of old segments: delete, compact or both.", one_of("compact", "delete")
    ),
    "compression.gzip.level": integer(
        -1,
        "Level at which batches of another codec are compressed where compression.type is gzip; -1: the library's.",
        gzip_level,
    ),
    "compression.lz4.level": integer(9, "Level of lz4 where the broker compresses.", between(1, 17)),
    "compression.type": string(
        "producer",
        "Codec of stored batches; producer keeps what was sent.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    "compression.zstd.level": integer(3, "Level of zstd where the broker compresses.", between(-131_072, 22)),
    "delete.retention.ms": long(86_400_000, "How long a tombstone outlives cleaning.", at_least(0)),
    "file.delete.delay.ms": long(60_000, "Wait before the file of a deleted segment goes.", at_least(0)),
    "flush.messages": long(INT64_MAX, "Sync after this many records; 1: before every acknowledgement.", at_least(1)),
    "flush.ms": long(INT64_MAX, "Sync unsynced records after this.", at_least(0)),
    "follower.replication.throttled.replicas": several(
        (), "Replicas whose fetching is throttled, partition:broker.", throttled_replicas, free_list=True
    ),
    "index.interval.bytes": integer(4_096, "Bytes of log between two index entries.", at_least(0)),
    "leader.replication.throttled.replicas": several(
        (), "Replicas whose serving is throttled, partition:broker.", throttled_replicas, free_list=True
    ),
    "local.retention.bytes": long(-2, "Bytes a tiered partition keeps here.", at_least(-2), no_effect=_NO_TIERS),
    "local.retention.ms": long(
        -2, "How long a tiered partition keeps records here.", at_least(-2), no_effect=_NO_TIERS
    ),
    "max.compaction.lag.ms": long(INT64_MAX, "A record is cleaned at the latest after this.", at_least(1)),
    "max.message.bytes": integer(1_048_588, "Largest record batch a producer may send.", at_least(0)),
    "message.timestamp.after.max.ms": long(
        3_600_000, "How far a record's time may lie ahead of the broker's.", at_least(0)
    ),
    "message.timestamp.before.max.ms": long(
        INT64_MAX, "How far a record's time may lie behind the broker's.", at_least(0)
    ),
    "message.timestamp.type": string(
        "CreateTime",
        "Whose time a record carries: the producer's or the append's.",
        one_of("CreateTime", "LogAppendTime"),
    ),
    "min.cleanable.dirty.ratio": double(0.5, "Share of uncleaned bytes at which the log is cleaned.", between(0, 1)),
    "min.compaction.lag.ms": long(0, "A record is never cleaned before this.", at_least(0)),
    "min.insync.replicas": integer(1, "In-sync replicas that acks=all needs before it is accepted.", at_least(1)),
    "preallocate": boolean(
        False, "Whether segments get their full size at once.", no_effect="segments grow as they are written"
    ),
    "remote.log.copy.disable": boolean(False, "Whether tiering stops.", no_effect=_NO_TIERS),
    "remote.log.delete.on.disable": boolean(False, "Whether tiered data goes when tiering ends.", no_effect=_NO_TIERS),
    "remote.storage.enable": boolean(False, "Tiered storage; true is refused.", no_effect=_NO_TIERS),
    "retention.bytes": long(-1, "Bytes a partition keeps; -1: no limit."),
    "retention.ms": long(604_800_000, "How long records are kept; -1: no limit.", at_least(-1)),
    "segment.bytes": integer(1_073_741_824, "Size at which a segment is closed.", at_least(SEGMENT_BYTES_MIN)),
    "segment.index.bytes": integer(10_485_760, "Largest offset index of a segment.", at_least(4)),
    "segment.jitter.ms": long(0, "Random part taken off segment.ms, so that segments close apart.", at_least(0)),
    "segment.ms": long(604_800_000, "Age at which a segment is closed.", at_least(1)),
    "unclean.leader.election.enable": boolean(False, "Whether a replica out of sync may lead when no other is left."),
}

# The settings of nodes that give a topic its default, the best one first. One that has no row among those of nodes is declared by the
# topic's row.
_SYNONYMS: Final = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "local.retention.bytes": ("log.local.retention.bytes",),
    "local.retention.ms": ("log.local.retention.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}

# A broker has `group.consumer.<words>` for each `consumer.<words>`, and bounds `group.consumer.{min,max}.<words>`.
_GROUPS: Final = {
    "consumer.assignment.interval.ms": integer(1_000, "Shortest time between two assignments of the group."),
    "consumer.heartbeat.interval.ms": integer(5_000, "How often members of the group shall send a heartbeat."),
    "consumer.session.timeout.ms": integer(45_000, "After how long without a heartbeat a member of the group is out."),
}

_CLIENT_METRICS: Final = {
    "interval.ms": integer(300_000, "How often clients shall push metrics, in milliseconds."),
    "match": several((), "Clients that shall push: name=pattern; all clients if empty.", free_list=True),
    "metrics": several((), "Prefixes of the names of metrics to push; * for all.", free_list=True),
}

_NODES: Final = {
    # Nodes and listeners
    "advertised.listeners": several(
        None, "Addresses handed to clients, name://host:port; `listeners` where not set.", not_empty
    ),
    "broker.id": integer(-1, "Older name of node.id; both must agree where both are set."),
    "broker.rack": string(None, "Rack of this broker, for replica placement and fetching from the nearest replica."),
    "cluster.id": string(None, "Barnabas only: the cluster that the data directory must belong to, or is made for."),
    "config.providers": several((), "Names of providers of values: `${name:path:key}` (KIP-297)."),
    "controller.listener.names": several(None, "Names of the listeners that serve the quorum.", not_empty),
    "controller.quorum.bootstrap.servers": several(
        (), "Where controller.quorum.voters is not set: the controller listener of a node alone, localhost:PORT."
    ),
    "controller.quorum.voters": several((), "The quorum's voters, id@host:port; this node alone where not set."),
    "inter.broker.listener.name": string(None, "Name of the listener for traffic between brokers."),
    "listener.security.protocol.map": string(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener name, NAME:PROTOCOL.",
    ),
    "listeners": several(("PLAINTEXT://:9092",), "Addresses this node serves, name://host:port.", not_empty),
    "log.dir": several(("/tmp/kafka-logs",), "Data directory where log.dirs is not set.", not_empty),
    "log.dirs": several(None, "Data directories, separated by commas.", not_empty),
    "metrics.listen": string(
        None,
        "Barnabas only: HOST:PORT of the HTTP server for metrics and health; port 0 takes a free one; off where not set.",
        host_and_port,
    ),
    "metadata.log.dir": string(None, "Which of log.dirs holds the metadata log; the first where not set."),
    "node.id": integer(None, "Id of this node, unique in the cluster.", at_least(0)),
    "process.roles": several(None, "Roles of this node: broker, controller or both.", some_of("broker", "controller")),
    "security.inter.broker.protocol": string("PLAINTEXT", "Security protocol between brokers."),
    # Connections
    "connections.max.idle.ms": long(600_000, "A connection silent for longer is closed; negative: never."),
    "max.connection.creation.rate": integer(INT32_MAX, "New connections a second.", at_least(0), dynamic=True),
    "max.connections": integer(INT32_MAX, "Open connections of this broker.", at_least(0), dynamic=True),
    "max.connections.per.ip": integer(INT32_MAX, "Open connections from one address.", at_least(0), dynamic=True),
    "max.connections.per.ip.overrides": string(
        "", "ADDRESS:COUNT pairs over max.connections.per.ip.", check_overrides, dynamic=True
    ),
    "queued.max.request.bytes": long(
        -1,
        "Bytes of large requests that are being received or wait, over all connections; -1: 64 MiB. One request may be larger.",
    ),
    "queued.max.requests": integer(
        500, "Requests that wait for a handler.", at_least(1), no_effect="requests are answered as they are read"
    ),
    "request.timeout.ms": integer(30_000, "How long a request between nodes may take.", at_least(1)),
    "socket.connection.setup.timeout.max.ms": long(
        30_000, "Ceiling of the growing connect timeout between nodes.", no_effect=_CONNECT
    ),
    "socket.connection.setup.timeout.ms": long(10_000, "First connect timeout between nodes.", no_effect=_CONNECT),
    "socket.listen.backlog.size": integer(1_024, "Connections the kernel queues before accept.", at_least(1)),
    "socket.receive.buffer.bytes": integer(-1, "SO_RCVBUF of client connections; -1: the kernel's.", at_least(-1)),
    "socket.request.max.bytes": integer(
        104_857_600,
        "Largest request frame, checked before allocation; where it is not set, 8 MiB for all APIs but Produce.",
        at_least(1),
    ),
    "socket.send.buffer.bytes": integer(-1, "SO_SNDBUF of client connections; -1: the kernel's.", at_least(-1)),
    "telemetry.max.bytes": integer(1_048_576, "Largest push of a client's metrics, also decompressed.", at_least(1)),
    # Topics
    "auto.create.topics.enable": boolean(True, "Whether a Metadata request may create the topics it asks for."),
    "default.replication.factor": integer(1, "Replicas of topics created without a number.", at_least(1)),
    "delete.topic.enable": boolean(True, "Whether DeleteTopics deletes anything."),
    "max.request.partition.size.limit": integer(
        2_000, "Partitions in one DescribeTopicPartitions answer.", at_least(1)
    ),
    "num.partitions": integer(1, "Partitions of topics created without a number.", at_least(1)),
    # Logs: what has no topic key, or another default
    "log.cleaner.backoff.ms": long(15_000, "Sleep of the cleaner that found no work.", at_least(0), dynamic=True),
    "log.cleaner.dedupe.buffer.size": long(134_217_728, "Memory for the keys of one cleaning, in bytes.", dynamic=True),
    "log.cleaner.enable": boolean(True, "Whether compacted topics are cleaned."),
    "log.cleaner.io.buffer.load.factor": double(
        0.9, "How full the cleaner's key map may get.", dynamic=True, no_effect="the key map is a dict"
    ),
    "log.cleaner.io.buffer.size": integer(
        524_288,
        "Memory for the cleaner's reads and writes.",
        at_least(0),
        dynamic=True,
        no_effect="a segment is read a megabyte at once",
    ),
    "log.cleaner.io.max.bytes.per.second": double(
        DOUBLE_MAX, "Ceiling of the cleaner's reads and writes.", dynamic=True
    ),
    "log.cleaner.threads": integer(
        1, "Threads that clean logs.", at_least(0), dynamic=True, no_effect="one cleaner runs on the loop"
    ),
    "log.dir.failure.timeout.ms": long(
        30_000, "Wait for the controller before a failed directory stops the broker.", at_least(1)
    ),
    "log.flush.interval.ms": long(
        None, "Sync unsynced records after this; the scheduler's interval where not set.", dynamic=True
    ),
    "log.flush.offset.checkpoint.interval.ms": integer(60_000, "How often recovery points are written.", at_least(0)),
    "log.flush.scheduler.interval.ms": long(INT64_MAX, "How often logs are checked for syncs by flush.ms."),
    "log.flush.start.offset.checkpoint.interval.ms": integer(
        60_000,
        "How often log starts are written.",
        at_least(0),
        no_effect="log starts are written with the recovery points, by log.flush.offset.checkpoint.interval.ms",
    ),
    "log.retention.check.interval.ms": long(300_000, "How often retention is applied.", at_least(1)),
    "log.retention.hours": integer(168, "Retention in hours, where neither minutes nor ms are set."),
    "log.retention.minutes": integer(None, "Retention in minutes, where ms is not set."),
    "log.retention.ms": long(None, "How long records are kept; -1: no limit.", dynamic=True),
    "log.roll.hours": integer(168, "Age in hours at which a segment is closed, where ms is not set.", at_least(1)),
    "log.roll.jitter.hours": integer(0, "Random part of the age in hours, where ms is not set.", at_least(0)),
    "log.roll.jitter.ms": long(None, "Random part taken off log.roll.ms, so that segments close apart.", dynamic=True),
    "log.roll.ms": long(None, "Age at which a segment is closed.", dynamic=True),
    "num.recovery.threads.per.data.dir": integer(
        2,
        "Threads that recover logs, a directory.",
        at_least(1),
        dynamic=True,
        no_effect="logs are recovered one by one",
    ),
    "record.validation": string(
        "full",
        "Barnabas only: full checks the lengths, offsets and timestamps of every produced record, as Kafka does; header checks those in the batch header alone.",
        one_of("header", "full"),
    ),
    "producer.id.expiration.ms": integer(
        86_400_000, "Idle time after which a partition forgets a producer.", at_least(1), dynamic=True
    ),
    "producer.id.expiration.check.interval.ms": integer(
        600_000, "How often idle producers are looked for (hidden in Kafka).", at_least(1)
    ),
    # Replication
    "auto.leader.rebalance.enable": boolean(
        True, "Whether preferred replicas get their leadership back by themselves, as soon as they are in sync."
    ),
    "broker.heartbeat.interval.ms": integer(2_000, "How often a broker reports to the controller.", at_least(1)),
    "broker.probe.enable": boolean(
        True,
        "Barnabas only: whether nodes connect to a broker whose connection closed, to fence it before its session ends.",
    ),
    "broker.session.timeout.ms": integer(9_000, "Silence after which the controller fences a broker.", at_least(1)),
    "controlled.shutdown.enable": boolean(True, "Whether a stopping broker hands its leaderships over first."),
    "initial.broker.registration.timeout.ms": integer(
        60_000, "How long a starting broker tries to register before it ends."
    ),
    "leader.imbalance.check.interval.seconds": long(300, "How often preferred leaders are checked.", at_least(1)),
    "num.replica.fetchers": integer(
        1, "Fetchers for each leader.", at_least(1), dynamic=True, no_effect="one fetcher for each peer"
    ),
    "follower.replication.throttled.rate": long(
        INT64_MAX,
        "Bytes a second that this broker fetches of replicas that follower.replication.throttled.replicas names.",
        at_least(0),
        dynamic=True,
    ),
    "leader.replication.throttled.rate": long(
        INT64_MAX,
        "Bytes a second that this broker sends of replicas that leader.replication.throttled.replicas names.",
        at_least(0),
        dynamic=True,
    ),
    "replication.quota.window.num": integer(11, "Samples that make the rate of throttled replication.", at_least(1)),
    "replication.quota.window.size.seconds": integer(1, "Length of such a sample.", at_least(1)),
    "replica.fetch.backoff.ms": integer(1_000, "Wait of a follower after a failed fetch.", at_least(0)),
    "replica.fetch.max.bytes": integer(1_048_576, "Bytes a follower asks for, a partition.", at_least(0)),
    "replica.fetch.min.bytes": integer(1, "Bytes a leader waits for before it answers a follower."),
    "replica.fetch.response.max.bytes": integer(10_485_760, "Bytes a follower asks for in all.", at_least(0)),
    "replica.fetch.wait.max.ms": integer(500, "Longest wait of a follower's fetch.", at_least(0)),
    "replica.high.watermark.checkpoint.interval.ms": long(5_000, "How often high watermarks are written.", at_least(1)),
    "replica.lag.time.max.ms": long(30_000, "A follower behind for longer leaves the in-sync replicas.", at_least(1)),
    "replica.selector.class": string(
        None,
        "Who serves consumers that name their rack: the leader, or a replica in it. Kafka's two classes, by their names.",
        one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    ),
    "replica.socket.receive.buffer.bytes": integer(
        65_536, "SO_RCVBUF of replication connections.", no_effect="the kernel sizes the buffer"
    ),
    "replica.socket.timeout.ms": integer(30_000, "How long a replication request may take.", at_least(1)),
    # Metadata quorum
    "controller.quorum.append.linger.ms": integer(
        0, "How long the controller waits for more decisions to write together; 25 in Kafka.", at_least(0)
    ),
    "controller.quorum.election.backoff.max.ms": integer(
        1_000, "Ceiling of the random wait between elections.", at_least(0)
    ),
    "controller.quorum.election.timeout.ms": integer(1_000, "Wait for votes before another election.", at_least(0)),
    "controller.quorum.fetch.max.bytes": integer(1_048_576, "Bytes of metadata log in one answer.", at_least(1)),
    "controller.quorum.fetch.snapshot.max.bytes": integer(1_048_576, "Bytes of snapshot in one answer.", at_least(1)),
    "controller.quorum.fetch.timeout.ms": integer(2_000, "Silence of the leader before an election.", at_least(0)),
    "controller.quorum.request.timeout.ms": integer(2_000, "How long a quorum request may take.", at_least(0)),
    "controller.quorum.retry.backoff.ms": integer(20, "Wait before a quorum request is tried again.", at_least(0)),
    "controller.socket.timeout.ms": integer(
        30_000, "How long a broker's request to the controller may take.", at_least(1)
    ),
    "metadata.log.max.record.bytes.between.snapshots": long(
        20_971_520, "Metadata bytes after which a snapshot is taken.", at_least(1)
    ),
    "metadata.log.max.snapshot.interval.ms": long(
        3_600_000, "Time after which a snapshot is taken; 0: never by time.", at_least(0)
    ),
    "metadata.log.segment.bytes": integer(
        1_073_741_824, "Size at which a metadata segment is closed.", at_least(8 * 1024 * 1024)
    ),
    "metadata.log.segment.ms": long(604_800_000, "Age at which a metadata segment is closed."),
    "metadata.max.idle.interval.ms": integer(
        500,
        "Interval of no-op metadata records.",
        at_least(0),
        no_effect="no no-op records are written: fetches show the lag",
    ),
    "metadata.max.retention.bytes": long(104_857_600, "Bytes of metadata log and snapshots kept."),
    "metadata.max.retention.ms": long(604_800_000, "Age to which metadata log and snapshots are kept."),
    # Fetches and groups
    "fetch.max.bytes": integer(57_671_680, "Most bytes in one Fetch answer.", at_least(1_024)),
    "group.consumer.assignment.interval.ms": integer(
        1_000, "Shortest time between two assignments of a consumer group.", at_least(0), dynamic=True
    ),
    "group.consumer.assignors": several(
        ("uniform", "range"),
        "Server-side assignors that members may ask for; the first is the default.",
        some_of("uniform", "range"),
    ),
    "group.consumer.heartbeat.interval.ms": integer(5_000, "How often members of consumer groups send.", at_least(1)),
    "group.consumer.max.assignment.interval.ms": integer(15_000, "Most a group may set of its own.", at_least(0)),
    "group.consumer.max.heartbeat.interval.ms": integer(15_000, "Most a group may set of its own.", at_least(1)),
    "group.consumer.max.session.timeout.ms": integer(60_000, "Most a group may set of its own.", at_least(1)),
    "group.consumer.max.size": integer(INT32_MAX, "Most members of a consumer group.", at_least(1)),
    "group.consumer.migration.policy": string(
        "bidirectional",
        "Whether groups change between the classic and the consumer protocol while they have members.",
        one_of("disabled", "downgrade", "upgrade", "bidirectional", any_case=True),
    ),
    "group.consumer.min.assignment.interval.ms": integer(0, "Least a group may set of its own.", at_least(0)),
    "group.consumer.min.heartbeat.interval.ms": integer(5_000, "Least a group may set of its own.", at_least(1)),
    "group.consumer.min.session.timeout.ms": integer(45_000, "Least a group may set of its own.", at_least(1)),
    "group.consumer.session.timeout.ms": integer(45_000, "Silence after which a member is removed.", at_least(1)),
    "group.coordinator.rebalance.protocols": several(
        ("classic", "consumer", "streams"),
        "Protocols that groups may use; classic must be in it. Without consumer, requests of KIP-848 get UNSUPPORTED_VERSION; streams and share change nothing.",
        some_of("classic", "consumer", "share", "streams", needed="classic"),
    ),
    "group.initial.rebalance.delay.ms": integer(3_000, "Wait of a new group for more members.", at_least(0)),
    "group.max.session.timeout.ms": integer(1_800_000, "Longest session timeout a member may ask for.", at_least(1)),
    "group.max.size": integer(INT32_MAX, "Most members of a group.", at_least(1)),
    "group.min.session.timeout.ms": integer(6_000, "Shortest session timeout a member may ask for.", at_least(1)),
    "max.incremental.fetch.session.cache.slots": integer(1_000, "Fetch sessions kept.", at_least(0)),
    "offset.metadata.max.bytes": integer(4_096, "Longest text a committed offset may carry.", at_least(0)),
    "offsets.commit.timeout.ms": integer(5_000, "How long an offset commit waits for its replicas.", at_least(1)),
    "offsets.load.buffer.size": integer(
        5_242_880, "Bytes read at once while groups are loaded.", at_least(1), no_effect=_LOADED
    ),
    "offsets.retention.check.interval.ms": long(600_000, "How often expired offsets are removed.", at_least(1)),
    "offsets.retention.minutes": integer(10_080, "How long offsets of an empty group are kept.", at_least(1)),
    "offsets.topic.compression.codec": integer(
        0, "Codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.", between(0, 4)
    ),
    "offsets.topic.num.partitions": integer(50, "Partitions of __consumer_offsets.", at_least(1)),
    "offsets.topic.replication.factor": short(3, "Replicas of __consumer_offsets.", at_least(1)),
    "offsets.topic.segment.bytes": integer(
        104_857_600, "Segment size of __consumer_offsets.", at_least(SEGMENT_BYTES_MIN)
    ),
    # Transactions
    "add.partitions.to.txn.retry.backoff.max.ms": integer(
        100, "Longest time a held AddPartitionsToTxn waits.", at_least(0)
    ),
    "add.partitions.to.txn.retry.backoff.ms": integer(
        20, "Wait between two tries of a held AddPartitionsToTxn.", at_least(1)
    ),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": integer(
        10_000,
        "How often timed-out transactions are looked for.",
        at_least(1),
        no_effect="each transaction has a timer of its own",
    ),
    "transaction.max.timeout.ms": integer(900_000, "Longest transaction timeout a producer may ask for.", at_least(1)),
    "transaction.partition.verification.enable": boolean(
        True, "Whether an append asks the coordinator first (KIP-890).", dynamic=True
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": integer(
        3_600_000, "How often expired transactional ids are looked for.", at_least(1)
    ),
    "transaction.state.log.load.buffer.size": integer(
        5_242_880, "Bytes read at once while transactions are loaded.", at_least(1), no_effect=_LOADED
    ),
    "transaction.state.log.min.isr": integer(2, "min.insync.replicas of __transaction_state.", at_least(1)),
    "transaction.state.log.num.partitions": integer(50, "Partitions of __transaction_state.", at_least(1)),
    "transaction.state.log.replication.factor": short(3, "Replicas of __transaction_state.", at_least(1)),
    "transaction.state.log.segment.bytes": integer(
        104_857_600, "Segment size of __transaction_state.", at_least(SEGMENT_BYTES_MIN)
    ),
    "transaction.two.phase.commit.enable": boolean(
        True, "Whether producers may prepare transactions (KIP-939); false in Kafka."
    ),
    "transactional.id.expiration.ms": integer(
        604_800_000, "Idle time after which a transactional id is forgotten.", at_least(1)
    ),
    # Quotas
    "quota.window.num": integer(11, "Samples that make the rates of clients with quotas.", at_least(1)),
    "quota.window.size.seconds": integer(1, "Length of such a sample.", at_least(1)),
    "controller.quota.window.num": integer(11, "Samples of the rate of created and deleted partitions.", at_least(1)),
    "controller.quota.window.size.seconds": integer(1, "Length of such a sample.", at_least(1)),
    # Authorizer
    "allow.everyone.if.no.acl.found": boolean(False, "Whether everyone may use a resource that no ACL is about."),
    "authorizer.class.name": string(
        "",
        "The authorizer: Kafka's StandardAuthorizer by its class name; none where empty.",
        one_of("", AUTHORIZER_CLASS),
    ),
    "super.users": string("", "Principals that may do everything, separated by semicolons: User:admin;User:broker."),
    # TLS
    "ssl.allow.dn.changes": boolean(
        False, "Whether a new certificate may have another subject.", no_effect="a new certificate may have any subject"
    ),
    "ssl.allow.san.changes": boolean(
        False,
        "Whether a new certificate may have other alternative names.",
        no_effect="a new certificate may have any names",
    ),
    "ssl.cipher.suites": several(
        (),
        "Allowed cipher suites, by Java's or OpenSSL's names; OpenSSL's default where empty. Of TLS 1.3 all suites or none.",
    ),
    "ssl.client.auth": string(
        "none",
        "Whether clients must have a certificate: none, requested or required.",
        one_of("required", "requested", "none"),
    ),
    "ssl.enabled.protocols": several(("TLSv1.2", "TLSv1.3"), "Allowed versions of TLS.", one_of("TLSv1.2", "TLSv1.3")),
    "ssl.endpoint.identification.algorithm": string(
        "https",
        "How this node checks the name in another node's certificate: https, or empty for no check.",
        one_of("https", "HTTPS", ""),
    ),
    "ssl.keymanager.algorithm": string("SunX509", "Java's key manager.", no_effect=_OPENSSL),
    "ssl.principal.mapping.rules": string(
        "DEFAULT",
        "How a client certificate's subject becomes a principal: RULE:pattern/replacement/[LU] or DEFAULT, the first match.",
        check_mapping_rules,
    ),
    "ssl.protocol": string(
        "TLSv1.3",
        "Name of Java's TLS context.",
        one_of("TLSv1.2", "TLSv1.3", "TLS"),
        no_effect="ssl.enabled.protocols decides",
    ),
    "ssl.provider": string(None, "Java's security provider.", no_effect=_OPENSSL),
    "ssl.secure.random.implementation": string(None, "Java's random numbers.", no_effect=_OPENSSL),
    "ssl.trustmanager.algorithm": string("PKIX", "Java's trust manager.", no_effect=_OPENSSL),
    # TLS stores: dynamic only with a listener's prefix
    "ssl.key.password": password(None, "Password of an encrypted private key.", dynamic=True),
    "ssl.keystore.certificate.chain": password(
        None, "Certificate chain as PEM text, the node's certificate first.", dynamic=True
    ),
    "ssl.keystore.key": password(None, "Private key as PEM text (PKCS8).", dynamic=True),
    "ssl.keystore.location": string(
        None, "File with key and certificate chain, of type ssl.keystore.type.", dynamic=True
    ),
    "ssl.keystore.password": password(None, "Password of a PKCS12 key store.", dynamic=True),
    "ssl.keystore.type": string(
        "JKS",
        "PEM, or PKCS12 (needs the extra security). A PKCS12 file is read under the name JKS as well, as in Java.",
        dynamic=True,
    ),
    "ssl.truststore.certificates": password(None, "Trusted certificates as PEM text.", dynamic=True),
    "ssl.truststore.location": string(None, "File with the trusted certificates.", dynamic=True),
    "ssl.truststore.password": password(None, "Password of a PKCS12 trust store.", dynamic=True),
    "ssl.truststore.type": string("JKS", "PEM or PKCS12, as ssl.keystore.type.", dynamic=True),
    # Logins of clients and nodes
    "connection.failed.authentication.delay.ms": integer(
        100, "Wait before a failed login is answered and closed.", at_least(0)
    ),
    "connections.max.reauth.ms": long(0, "Longest duration of a SASL session; 0: no limit."),
    "sasl.enabled.mechanisms": several(
        ("GSSAPI",), "SASL mechanisms of a listener, separated by commas.", dynamic=True
    ),
    "sasl.jaas.config": password(
        None, "Login module of a listener and mechanism, with its users or its own name and password.", dynamic=True
    ),
    "sasl.kerberos.kinit.cmd": string(
        "/usr/bin/kinit", "Command that renews a ticket cache.", dynamic=True, no_effect=_NO_RELOGIN
    ),
    "sasl.kerberos.min.time.before.relogin": long(
        60_000, "Shortest time between two logins at the KDC.", dynamic=True, no_effect=_NO_RELOGIN
    ),
    "sasl.kerberos.principal.to.local.rules": several(
        ("DEFAULT",),
        "Rules that make a name of a Kerberos principal; the first one that applies decides.",
        check_local_rules,
        dynamic=True,
    ),
    "sasl.kerberos.service.name": string(
        None, "First component of the brokers' Kerberos principals, usually kafka.", dynamic=True
    ),
    "sasl.kerberos.ticket.renew.jitter": double(
        0.05, "Random share added to the time of a renewal.", dynamic=True, no_effect=_NO_RELOGIN
    ),
    "sasl.kerberos.ticket.renew.window.factor": double(
        0.8, "Share of a ticket's life after which it is renewed.", dynamic=True, no_effect=_NO_RELOGIN
    ),
    "sasl.oauthbearer.clock.skew.seconds": integer(30, "Difference of clocks that a token may have."),
    "sasl.oauthbearer.expected.audience": several((), "Audiences, one of which a token must name; any where not set."),
    "sasl.oauthbearer.expected.issuer": string(None, "Issuer that a token must name; any where not set."),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": long(3_600_000, "Between two readings of the signing keys."),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": long(10_000, "Longest pause after a failed reading."),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": long(100, "First pause after a failed reading of the keys."),
    "sasl.oauthbearer.jwks.endpoint.url": string(
        None, "Where the signing keys of tokens are: file://, http://, https://."
    ),
    "sasl.oauthbearer.jwt.validator.class": java_class(
        f"{_OAUTH}.DefaultJwtValidator", "Kafka's class that checks a signed token; another one is refused."
    ),
    "sasl.oauthbearer.scope.claim.name": string("scope", "Claim of a token that has its scopes."),
    "sasl.oauthbearer.sub.claim.name": string("sub", "Claim of a token that has the name of the client."),
    "sasl.server.callback.handler.class": java_class(
        None, "OAUTHBEARER: Kafka's class that validates tokens; needed for unsecured tokens only."
    ),
    "sasl.server.max.receive.size": integer(
        524_288, "Largest request before a login is complete, in bytes.", at_least(1)
    ),
    "sasl.mechanism.controller.protocol": string("GSSAPI", "SASL mechanism of this node's connections to controllers."),
    "sasl.mechanism.inter.broker.protocol": string(
        "GSSAPI", "SASL mechanism of this node's connections to brokers.", dynamic=True
    ),
    # Delegation tokens
    "delegation.token.expiry.check.interval.ms": long(
        3_600_000, "Between two searches for expired tokens.", at_least(1)
    ),
    "delegation.token.expiry.time.ms": long(86_400_000, "Time until a token must be renewed.", at_least(1)),
    "delegation.token.max.lifetime.ms": long(604_800_000, "Time after which a token cannot be renewed.", at_least(1)),
    "delegation.token.max.per.owner": integer(
        1_000,
        "Barnabas only: tokens that one owner may have; a request for another one gets POLICY_VIOLATION.",
        at_least(1),
    ),
    "delegation.token.secret.key": password(
        None, "Secret from which the HMAC of tokens is made, the same on all nodes; no tokens where not set."
    ),
    # Threads and waiting lists
    "background.threads": integer(10, "Threads for background work.", at_least(1), dynamic=True, no_effect=_ONE_LOOP),
    "delete.records.purgatory.purge.interval.requests": integer(
        1, "Requests between two purges of the waiting list.", no_effect=_PURGE
    ),
    "fetch.purgatory.purge.interval.requests": integer(
        1_000, "Requests between two purges of the waiting list.", no_effect=_PURGE
    ),
    "metric.reporters": several(
        (), "Classes that report metrics.", dynamic=True, no_effect="Java classes are not loaded"
    ),
    "num.io.threads": integer(8, "Threads that handle requests.", at_least(1), dynamic=True, no_effect=_ONE_LOOP),
    "num.network.threads": integer(
        3, "Threads that serve connections.", at_least(1), dynamic=True, no_effect=_ONE_LOOP
    ),
    "producer.purgatory.purge.interval.requests": integer(
        1_000, "Requests between two purges of the waiting list.", no_effect=_PURGE
    ),
}

# Of a node's own OAUTHBEARER logins at other nodes; `protocol/oauth_settings.py` reads them.
_OAUTH_LOGINS: Final = {
    "sasl.login.callback.handler.class": java_class(None, "OAUTHBEARER between nodes: Kafka's class that gets tokens."),
    "sasl.login.connect.timeout.ms": integer(None, "Time to connect to the token endpoint; 10 s where not set."),
    "sasl.login.read.timeout.ms": integer(None, "Time for the whole answer of the token endpoint; 10 s where not set."),
    "sasl.login.refresh.buffer.seconds": short(
        300, "A token is renewed at least this time before its end.", between(0, 3_600), dynamic=True
    ),
    "sasl.login.refresh.min.period.seconds": short(
        60, "A token is not renewed earlier after it was got.", between(0, 900), dynamic=True
    ),
    "sasl.login.refresh.window.factor": double(
        0.8, "Part of a token's time until it is renewed.", between(0.5, 1.0), dynamic=True
    ),
    "sasl.login.refresh.window.jitter": double(
        0.05, "Random part of a token's time, added.", between(0.0, 0.25), dynamic=True
    ),
    "sasl.login.retry.backoff.max.ms": long(10_000, "Time in which requests to the token endpoint are repeated."),
    "sasl.login.retry.backoff.ms": long(100, "First pause after a failed request to the token endpoint."),
    "sasl.oauthbearer.assertion.algorithm": string(
        "RS256", "Signs assertions: RS256 or ES256.", one_of("RS256", "ES256", "rs256", "es256")
    ),
    "sasl.oauthbearer.assertion.claim.aud": string(None, "Audience in an assertion."),
    "sasl.oauthbearer.assertion.claim.exp.seconds": integer(300, "How long an assertion is valid.", between(0, 86_400)),
    "sasl.oauthbearer.assertion.claim.iss": string(
        None, "Issuer in an assertion; with it an assertion replaces the client's secret."
    ),
    "sasl.oauthbearer.assertion.claim.jti.include": boolean(False, "Whether an assertion has an id."),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": integer(
        60, "How long before now an assertion begins to be valid.", between(0, 3_600)
    ),
    "sasl.oauthbearer.assertion.claim.sub": string(None, "Subject in an assertion."),
    "sasl.oauthbearer.assertion.file": string(None, "File with a whole assertion, which replaces the client's secret."),
    "sasl.oauthbearer.assertion.private.key.file": string(
        None, "File with the private key in PEM that signs assertions."
    ),
    "sasl.oauthbearer.assertion.private.key.passphrase": password(None, "Decrypts the private key of assertions."),
    "sasl.oauthbearer.assertion.template.file": string(
        None, "JSON file with header and payload that are added to assertions."
    ),
    "sasl.oauthbearer.client.credentials.client.id": string(None, "This node's name at the token endpoint."),
    "sasl.oauthbearer.client.credentials.client.secret": password(None, "This node's secret at the token endpoint."),
    "sasl.oauthbearer.jwt.retriever.class": java_class(
        f"{_OAUTH}.DefaultJwtRetriever", "Kafka's class that gets a token: client_credentials, a file, or jwt-bearer."
    ),
    "sasl.oauthbearer.scope": string(None, "Scope that a token is asked for with."),
    "sasl.oauthbearer.token.endpoint.url": string(None, "Where nodes get their tokens: https://, http://, file://."),
}


def _named(rows: Mapping[str, ConfigKey]) -> dict[str, ConfigKey]:
    return {name: replace(key, name=name) for name, key in rows.items()}


def _dynamic(rows: Mapping[str, ConfigKey]) -> dict[str, ConfigKey]:
    return {name: replace(key, name=name, dynamic=True, synonyms=_SYNONYMS.get(name, ())) for name, key in rows.items()}


TOPIC_KEYS: Final = _dynamic(_TOPICS)
GROUP_KEYS: Final = _dynamic(_GROUPS)
CLIENT_METRICS_KEYS: Final = _dynamic(_CLIENT_METRICS)
OAUTH_LOGIN_KEYS: Final = _named(_OAUTH_LOGINS)
SERVER_KEYS: Final[dict[str, ConfigKey]] = {
    **_named(_NODES),
    **OAUTH_LOGIN_KEYS,
    **{
        name: replace(key, name=name, synonyms=())
        for key in TOPIC_KEYS.values()
        for name in key.synonyms
        if name not in _NODES
    },
}


class Unserved(NamedTuple):
    """Why a key is not served, and whether a value is refused, else ignored with a warning."""

    reason: str
    refused: bool = False


_NO_JAVA: Final = "Java classes are not loaded: remove this setting"
_NO_POLICY: Final = "Java classes are not loaded, so the policy would not hold: remove this setting"
_REPLICA_MOVES: Final = Unserved("replicas do not move between directories")
_TESTS_OF_KAFKA: Final = Unserved("it is for tests of Kafka itself")
_NO_SHARE_GROUPS: Final = Unserved("share groups are not served")
_NO_TIERED_STORAGE: Final = Unserved("tiered storage is not served")
_NO_JMX: Final = Unserved("there are no JMX metrics")

UNSERVED_KEYS: Final[dict[str, Unserved]] = {
    # refused; an empty value, and false for a switch, is not
    "principal.builder.class": Unserved(
        "principals come from the certificate or the login as in Kafka's default: remove this setting", True
    ),
    "security.providers": Unserved(_NO_JAVA, True),
    "ssl.engine.factory.class": Unserved(_NO_JAVA, True),
    "alter.config.policy.class.name": Unserved(_NO_POLICY, True),
    "create.topic.policy.class.name": Unserved(_NO_POLICY, True),
    "client.quota.callback.class": Unserved(_NO_POLICY, True),
    "remote.log.storage.system.enable": Unserved("tiered storage is not served: remove this setting", True),
    "cordoned.log.dirs": Unserved(
        "directories cannot be cordoned, and replicas would still be placed there: remove this setting", True
    ),
    "controller.quorum.auto.join.enable": Unserved(
        "the quorum's voters are fixed: name them all in controller.quorum.voters", True
    ),
    # ignored
    "alter.log.dirs.replication.quota.window.num": _REPLICA_MOVES,
    "alter.log.dirs.replication.quota.window.size.seconds": _REPLICA_MOVES,
    "num.replica.alter.log.dirs.threads": _REPLICA_MOVES,
    "replica.alter.log.dirs.io.max.bytes.per.second": _REPLICA_MOVES,
    "group.coordinator.background.threads": Unserved(_ONE_LOOP),
    "group.coordinator.threads": Unserved(_ONE_LOOP),
    "group.coordinator.append.linger.ms": Unserved("records of one turn of the loop are written together"),
    "group.coordinator.cached.buffer.max.bytes": Unserved("a coordinator makes a new batch for each append"),
    "share.fetch.purgatory.purge.interval.requests": _NO_SHARE_GROUPS,
    "follower.fetch.last.tiered.offset.enable": _NO_TIERED_STORAGE,
    "early.start.listeners": Unserved(
        "listeners are bound before the node recovers and serve once it is unfenced", False
    ),
    "server.max.startup.time.ms": Unserved("a broker waits for the controller as long as it takes"),
    "unclean.leader.election.interval.ms": Unserved(
        "leaders of partitions without one are elected when a replica comes back", False
    ),
    "group.consumer.regex.refresh.interval.ms": Unserved(
        "expressions are looked up again when topics or ACLs change", False
    ),
    "controller.performance.always.log.threshold.ms": _TESTS_OF_KAFKA,
    "controller.performance.sample.period.ms": _TESTS_OF_KAFKA,
    "internal.metadata.delete.delay.millis": _TESTS_OF_KAFKA,
    "internal.metadata.log.segment.bytes": _TESTS_OF_KAFKA,
    "internal.metadata.max.batch.size.in.bytes": _TESTS_OF_KAFKA,
    "log.initial.task.delay.ms": _TESTS_OF_KAFKA,
    "unstable.api.versions.enable": _TESTS_OF_KAFKA,
    "unstable.feature.versions.enable": _TESTS_OF_KAFKA,
}

# Of all other settings with these prefixes.
PREFIXES: Final[Mapping[str, Unserved]] = {
    "sasl.": Unserved("it belongs to a Java class, or to clients: remove this setting", True),
    "listener.name.": Unserved("a single listener has no such setting of its own: remove this", True),
    "delegation.token.": Unserved("delegation tokens have no such setting: remove it", True),
    "group.share.": _NO_SHARE_GROUPS,
    "share.coordinator.": _NO_SHARE_GROUPS,
    "group.streams.": Unserved("streams groups are not served"),
    "remote.": _NO_TIERED_STORAGE,
    "metrics.": _NO_JMX,
    "kafka.metrics.": _NO_JMX,
}
PROVIDERS: Final = "config.providers."  # settings of config providers, whose names the file declares

SSL_STORE_KEYS: Final = frozenset(
    name for name in SERVER_KEYS if name.startswith(("ssl.key.", "ssl.keystore.", "ssl.truststore."))
)
# Settings that one listener may have for itself: listener.name.<name>.<key>, or listener.name.<name>.<mechanism>.<key>.
SSL_LISTENER_KEYS: Final = tuple(
    name for name, key in SERVER_KEYS.items() if name.startswith("ssl.") and key.no_effect is None
)
LISTENER_KEYS: Final = (
    "max.connection.creation.rate",
    "max.connections",
    "connection.failed.authentication.delay.ms",
    "connections.max.reauth.ms",
    *SSL_LISTENER_KEYS,
    *(name for name in SERVER_KEYS if name.startswith("sasl.") and not name.startswith("sasl.mechanism.")),
)
_LISTENER_ENDS: Final = tuple(f".{name}" for name in LISTENER_KEYS)
# Settings of a listener that may be altered for all brokers at once.
_FOR_ALL_BROKERS: Final = frozenset({"max.connection.creation.rate", "max.connections", "num.network.threads"})
# Settings that Kafka describes only where they are set: they are set at run time, or belong to the authorizer.
NOT_DESCRIBED: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "super.users",
    }
)


def server_key(name: str) -> ConfigKey | None:
    """Also for one listener's setting; None for an unknown key."""
    if name.startswith("listener.name."):
        return next((SERVER_KEYS[key] for key in LISTENER_KEYS if name.endswith("." + key)), None)
    return SERVER_KEYS.get(name)


def is_per_broker(name: str) -> bool:
    """As in Kafka 4.3.1, settings of a listener and of logins are per broker only."""
    if name.startswith("listener.name."):
        _, dot, setting = name.removeprefix("listener.name.").partition(".")
        return bool(dot) and setting not in _FOR_ALL_BROKERS
    return name.startswith("sasl.") and name in SERVER_KEYS


def unserved(name: str) -> Unserved | None:
    """None for a setting that is served, or that Kafka does not have."""
    found = UNSERVED_KEYS.get(name)
    if (
        found is not None
        or name in SERVER_KEYS
        or (name.startswith("listener.name.") and name.endswith(_LISTENER_ENDS))
    ):
        return found
    return next((each for prefix, each in PREFIXES.items() if name.startswith(prefix)), None)
