"""System-wide limits with unit and reason; limits that are Kafka config keys are in `broker/config/broker_config.py`."""

from __future__ import annotations

# producers with transaction version 1 whose newest connection a coordinator keeps: about 20 MB
FENCED_PRODUCERS_MAX = 100_000
# in all fetch sessions of a node: about 150 MB; above it a request gets no session
FETCH_SESSION_PARTITIONS_MAX = 250_000
FRAME_BYTES_MAX = 100 * 1024 * 1024  # default of socket.request.max.bytes, checked before allocation
FRAME_BYTES_SMALL_MAX = 8 * 1024 * 1024  # frames of every API but Produce: other requests are smaller
# of an Envelope: the request inside may be in a longer version than the client's
ENVELOPE_BYTES_MAX = 2 * FRAME_BYTES_SMALL_MAX
# Array elements in one request: a valid 10 MB Metadata request would cost 2.9 s and 311 MB.
DECODED_ELEMENTS_MAX = 100_000
# An empty list of topics or partitions in a request element counts as this number of elements. Clients send none: they group
# partitions by topic. Handlers take turns after partitions: 99,000 empty topics took 200 ms in one turn, 4,700 take 10 ms.
EMPTY_LIST_ELEMENTS = 20
# Array elements of a request that is decoded in one turn of the loop: 2 ms. A larger request is decoded in slices.
ONE_TURN_ELEMENTS_MAX = 2_000
# Array elements in one response: higher, because our client has chosen the broker. Metadata has seven for each partition of the cluster.
ANSWER_ELEMENTS_MAX = 10_000_000
INFLIGHT_REQUESTS_MAX = 1_000  # requests of one connection decoded and not yet answered; reading pauses above it
# Size of one produced batch when decompressed. One batch takes at most two buffers of this size in memory. A producer splits its batch
# after MESSAGE_TOO_LARGE. For topics with a larger max.message.bytes that value is the limit.
BATCH_BYTES_MAX = 24 * 1024 * 1024
BATCH_RECORDS_MAX = 1_000_000  # of one produced batch: checking them takes half a second of the loop, in slices
RECORD_HEADERS_MAX = 16_384  # of one produced record: their check takes 7 ms of the loop in plain Python, in one turn
RECORD_ERRORS_MAX = 1_000  # rejected records that one Produce response lists: about 60 kB
# rejections with an error text in one response: 2 MB; the other rejections have only their code
REFUSAL_TEXTS_MAX = 10_000
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024  # of one batch's records: 100 kB can decompress to 100 MB
EPOCHS_REMEMBERED_MAX = 64  # leader epochs that a consumer keeps for each partition: one for each change of leader
REGISTERED_ITEMS_MAX = 1_000  # listeners of one registration, and features as well; every node keeps them
SEQUENCE_MAX = 2**31 - 1  # base sequences wrap to 0 after it (KIP-98)
PRODUCER_EPOCH_MAX = 32_766  # the highest epoch of a producer; the coordinator uses 32,767 to fence (KIP-360, KIP-890)
PRODUCER_ID_BLOCK_SIZE = 1_000  # ids in one ProducerIdsRecord, as in Kafka
# Settings in one DescribeConfigs answer: 10,000 topics with synonyms take 21 MB. Resources above it get INVALID_REQUEST.
DESCRIBED_BYTES_MAX = 40 * 1024 * 1024
REFUSED_PRODUCERS_MAX = 100  # new producers of one partition whose first batches were rejected for good
RESOLVED_HOSTS_MAX = 1_000  # host names whose last addresses are kept: brokers of one cluster
RETAINED_BATCHES = 5  # batches that a producer may have in flight, so the duplicates that must be recognised (KIP-98)
# Of all protocols of all members of a classic group: its leader's JoinGroup answer has them. A record of the group holds about 1 MiB.
GROUP_METADATA_BYTES_MAX = 8 * 1024 * 1024
# of all protocols of one member of a classic group: a record of a group holds no more
MEMBER_METADATA_BYTES_MAX = 1024 * 1024
MEMBER_PROTOCOLS_MAX = 1_000  # assignors that one member of a classic group may name; usual are one to three
SUBSCRIPTION_NAMES_MAX = 10_000  # topics that one member of a KIP-848 group may subscribe to by name: 7 ms
# topic names that are decoded from the different subscriptions of one classic group: 15 ms
SUBSCRIBED_NAMES_MAX = 20_000
TOPIC_NAME_LENGTH_MAX = 249  # Kafka's: the folder name with "-partition" and ".delete" suffixes fits 255
# of all connections, if queued.max.request.bytes is not set; one request may be larger
QUEUED_BYTES_MAX = 64 * 1024 * 1024
# of all connections; above it Fetch responses get small and other answers wait
UNREAD_ANSWER_BYTES_MAX = 256 * 1024 * 1024
