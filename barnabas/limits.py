"""Every bound of the system, with its unit and its reason. A limit that is a Kafka config key lives in `broker/config.py` instead."""

from __future__ import annotations

__all__ = [
    "DECODED_ELEMENTS_MAX",
    "DECOMPRESSED_BYTES_MAX",
    "FENCED_PRODUCERS_MAX",
    "FRAME_BYTES_MAX",
    "FRAME_BYTES_SMALL_MAX",
    "INFLIGHT_REQUESTS_MAX",
    "PRODUCER_EPOCH_MAX",
    "PRODUCER_ID_BLOCK_SIZE",
    "RETAINED_BATCHES",
    "SEQUENCE_MAX",
    "TOPIC_NAME_LENGTH_MAX",
    "UNREAD_ANSWER_BYTES_MAX",
]

FENCED_PRODUCERS_MAX = 100_000  # producers of V1 whose newest connection a coordinator remembers: some 20 MB
FRAME_BYTES_MAX = 100 * 1024 * 1024  # default of socket.request.max.bytes, checked before allocation
FRAME_BYTES_SMALL_MAX = 8 * 1024 * 1024  # frames of every API but Produce: nothing else has a reason to be larger
# Array elements in one message: a valid 10 MB Metadata request would cost 2.9 s and 311 MB.
DECODED_ELEMENTS_MAX = 100_000
INFLIGHT_REQUESTS_MAX = 1_000  # requests of one connection decoded and not yet answered; reading pauses above it
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024  # of one batch's records: a bomb of 100 kB would fill 100 MB
SEQUENCE_MAX = 2**31 - 1  # base sequences wrap to 0 after it (KIP-98)
PRODUCER_EPOCH_MAX = 32_766  # the highest epoch handed out; 32,767 is the coordinator's own fence (KIP-360, KIP-890)
PRODUCER_ID_BLOCK_SIZE = 1_000  # ids in one ProducerIdsRecord, as in Kafka
RETAINED_BATCHES = 5  # batches a producer may have in flight, so duplicates that must be recognised (KIP-98)
TOPIC_NAME_LENGTH_MAX = 249  # Kafka's: the folder name with "-partition" and ".delete" suffixes fits 255
UNREAD_ANSWER_BYTES_MAX = 256 * 1024 * 1024  # in write buffers of all connections, before Fetch answers get small
