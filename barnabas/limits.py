"""Every bound of the system, with its unit and its reason. A limit that is a Kafka config key lives in `broker/config.py` instead."""

from __future__ import annotations

__all__ = [
    "ANSWER_ELEMENTS_MAX",
    "BATCH_BYTES_MAX",
    "BATCH_RECORDS_MAX",
    "DECODED_ELEMENTS_MAX",
    "DECOMPRESSED_BYTES_MAX",
    "DELETED_TOPICS_MAX",
    "EPOCHS_REMEMBERED_MAX",
    "FENCED_PRODUCERS_MAX",
    "FETCH_SESSION_PARTITIONS_MAX",
    "FRAME_BYTES_MAX",
    "FRAME_BYTES_SMALL_MAX",
    "INFLIGHT_REQUESTS_MAX",
    "ONE_TURN_ELEMENTS_MAX",
    "PRODUCER_EPOCH_MAX",
    "PRODUCER_ID_BLOCK_SIZE",
    "RECORD_ERRORS_MAX",
    "REFUSAL_TEXTS_MAX",
    "REFUSED_PRODUCERS_MAX",
    "REGISTERED_ITEMS_MAX",
    "RESOLVED_HOSTS_MAX",
    "RETAINED_BATCHES",
    "SEQUENCE_MAX",
    "SUBSCRIPTION_NAMES_MAX",
    "TOPIC_NAME_LENGTH_MAX",
    "UNREAD_ANSWER_BYTES_MAX",
]

FENCED_PRODUCERS_MAX = 100_000  # producers of V1 whose newest connection a coordinator remembers: some 20 MB
FETCH_SESSION_PARTITIONS_MAX = (
    250_000  # of all fetch sessions of a node: some 150 MB; beyond, a request gets no session
)
FRAME_BYTES_MAX = 100 * 1024 * 1024  # default of socket.request.max.bytes, checked before allocation
FRAME_BYTES_SMALL_MAX = 8 * 1024 * 1024  # frames of every API but Produce: nothing else has a reason to be larger
# Array elements in one request: a valid 10 MB Metadata request would cost 2.9 s and 311 MB.
DECODED_ELEMENTS_MAX = 100_000
# Array elements of a request that is decoded in one turn of the loop: 2 ms. A larger one is decoded in slices.
ONE_TURN_ELEMENTS_MAX = 2_000
# Array elements in one answer, from a broker that we chose to ask: Metadata has seven for each partition of the cluster.
ANSWER_ELEMENTS_MAX = 10_000_000
INFLIGHT_REQUESTS_MAX = 1_000  # requests of one connection decoded and not yet answered; reading pauses above it
# Of one produced batch when decompressed: two buffers of this size are the most that one batch takes in memory.
# A producer that gets MESSAGE_TOO_LARGE cuts its batch in two. Topics with a larger max.message.bytes have that as their bound.
BATCH_BYTES_MAX = 24 * 1024 * 1024
BATCH_RECORDS_MAX = 1_000_000  # of one produced batch: the walk over them takes half a second of the loop, in slices
RECORD_ERRORS_MAX = 1_000  # refused records that one Produce answer lists: some 60 kB
REFUSAL_TEXTS_MAX = 10_000  # refusals with a text of their own in one answer: 2 MB; the others have their code alone
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024  # of one batch's records: a bomb of 100 kB would fill 100 MB
EPOCHS_REMEMBERED_MAX = (
    64  # leader epochs that a consumer keeps of each partition: one for each change of leader it has seen
)
REGISTERED_ITEMS_MAX = 1_000  # listeners, and features, of one registration, which every node keeps
SEQUENCE_MAX = 2**31 - 1  # base sequences wrap to 0 after it (KIP-98)
PRODUCER_EPOCH_MAX = 32_766  # the highest epoch handed out; 32,767 is the coordinator's own fence (KIP-360, KIP-890)
PRODUCER_ID_BLOCK_SIZE = 1_000  # ids in one ProducerIdsRecord, as in Kafka
DELETED_TOPICS_MAX = 10_000  # names that a broker remembers, so that a topic made anew under one is known to be: 2.5 MB
REFUSED_PRODUCERS_MAX = 100  # new producers of one partition whose first batches were refused for what is in them
RESOLVED_HOSTS_MAX = 1_000  # names whose last addresses are remembered: brokers of one cluster
RETAINED_BATCHES = 5  # batches a producer may have in flight, so duplicates that must be recognised (KIP-98)
SUBSCRIPTION_NAMES_MAX = 20_000  # topics that one member of a KIP-848 group may subscribe to by name: 10 ms
SUBSCRIBED_NAMES_MAX = 20_000  # topic names that the differing subscriptions of one classic group are read for: 15 ms
TOPIC_NAME_LENGTH_MAX = 249  # Kafka's: the folder name with "-partition" and ".delete" suffixes fits 255
UNREAD_ANSWER_BYTES_MAX = 256 * 1024 * 1024  # of all connections, before Fetch answers get small and others wait
