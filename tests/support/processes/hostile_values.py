"""Values that hostile requests are made of: texts, counts, tags, batches, and plausible values by name of the field."""

from __future__ import annotations

import random
from collections.abc import Callable

from barnabas.protocol.primitives import encode_uvarint
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch

INT_BITS = {"b": 7, "h": 15, "i": 31, "q": 63}
TOPICS = ("fuzz-a", "fuzz-b")
GROUPS = ("fuzz-classic", "fuzz-consumer", "fuzz-idle")
TRANSACTIONS = ("fuzz-txn-1", "fuzz-txn-2", "fuzz-txn-3")

HOSTILE_TEXTS = (
    b"",
    b".",
    b"..",
    b"../../etc/passwd",
    b"a/b",
    b"\0",
    b"x\0y",
    b"\xff\xfe",
    b"\xed\xa0\x80",  # a lone surrogate
    b"\xc0\x80",  # NUL, written too long
    "é☃🏰".encode(),
    b" ",
    b"x" * 249,
    b"x" * 250,
    b"x" * 32_767,
    b"%s%n{0}",
    b"-1",
    b"99999999999999999999",
    b"1e400",
    b"nan",
    b"true",
    b"(a+)+$",
    b"[",
    b"(?P<n>a)(?P=n)",
    b"a{1,1000000}",
    b"(" * 500,
    b"\\",
    b"__consumer_offsets",
    b"__transaction_state",
    b"__cluster_metadata",
    *(name.encode() for name in (*TOPICS, *GROUPS, *TRANSACTIONS)),
)

HOSTILE_COUNTS = (0, -1, -2, 1, 2, 127, 100_000, 2**31 - 1, -(2**31))

HOSTILE_UVARINTS = (
    *map(encode_uvarint, (0, 1, 2, 127, 128, 100_001, 2**31, 2**32 - 1)),
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80\x00",
)


def hostile_tags(rng: random.Random, old: bytes = b"\0") -> list[bytes]:
    """Tag sections: unknown tags, the same one twice, in the wrong order, with sizes and counts that lie."""
    unknown = encode_uvarint(9_999) + b"\x03abc"
    return [
        b"\x01" + unknown,
        b"\x02" + unknown + unknown,
        b"\x02" + unknown + b"\x00\x01a",
        b"\x01\x00\x7f",
        b"\x01\x00\x00",
        b"\x01\x00\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\xff\xff\xff",
        bytes([min(127, old[0] + 1)]) + old[1:] + unknown,
        b"\x7f" + old[1:],
        b"\x01" + encode_uvarint(rng.randrange(12)) + b"\x04" + rng.randbytes(4),
    ]


def is_text_broken(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


def fits(number: int, code: str) -> bool:
    limit: int = 1 << INT_BITS[code]
    return -limit <= number < limit


def uvarint_size(data: bytes) -> int:
    return next(at for at, byte in enumerate(data, 1) if byte < 0x80)


def batches() -> list[bytes]:
    """Valid batches of several kinds."""
    when = 1_700_000_000_000
    records = [NewRecord(b"key", b"value", when), NewRecord(None, b"v" * 300, when + 1)]
    made: list[Callable[[], bytearray]] = [
        lambda: build_batch(records),
        lambda: build_batch(records[:1]),
        lambda: build_batch([NewRecord(b"key", None, when)]),
        lambda: build_batch(records, producer_id=0, producer_epoch=0, base_sequence=0),
        lambda: build_batch(records, producer_id=0, producer_epoch=0, base_sequence=0, transactional=True),
        lambda: build_batch(records * 100),
        *((lambda codec=codec: build_batch(records * 20, compression=codec)) for codec in (1, 2, 3, 4)),
    ]
    return [bytes(make()) for make in made]


# Where the fields of a batch header lie, and their struct codes.
BATCH_FIELDS = (
    (0, "q"),
    (8, "i"),
    (12, "i"),
    (16, "b"),
    (21, "h"),
    (23, "i"),
    (27, "q"),
    (35, "q"),
    (43, "q"),
    (51, "h"),
    (53, "i"),
    (57, "i"),
)


# Settings that change nothing of what the fuzzer watches, whatever their value.
CONFIGS = (
    "retention.ms",
    "cleanup.policy",
    "segment.bytes",
    "segment.ms",
    "min.insync.replicas",
    "max.message.bytes",
    "compression.type",
    "message.timestamp.type",
    "log.retention.ms",
    "log.cleaner.threads",
    "consumer.session.timeout.ms",
    "unknown.key",
)

TEXTS: dict[str, tuple[str, ...]] = {
    "group_instance_id": ("instance-1",),
    "instance_id": ("instance-1",),
    "transactional_ids": (*TRANSACTIONS, "other"),
    "transactional_id_pattern": ("fuzz.*", ".*"),
    "protocol_type": ("consumer", ""),
    "protocol_name": ("range",),
    "server_assignor": ("uniform", "range"),
    "subscribed_topic_regex": ("fuzz.*",),
    "value": ("1", "1000", "delete", "compact", "producer"),
    "configuration_keys": CONFIGS,
    "feature": ("transaction.version", "share.version"),
    "state_filters": ("Ongoing", "Empty"),
    "states_filter": ("Stable", "Empty"),
    "types_filter": ("classic", "consumer"),
    "rack_id": ("", "a"),
    "reason": ("why",),
    "committed_metadata": ("", "note"),
    "client_software_name": ("fuzz",),
    "client_software_version": ("1",),
}

NUMBERS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "acks"): (-1, -1, 1),
    ("", "timeout_ms"): (1_000, 5_000),
    ("", "max_wait_ms"): (0, 1, 10),
    ("", "min_bytes"): (0, 1),
    ("", "max_bytes"): (65_536, 1_000_000),
    ("", "partition_max_bytes"): (65_536,),
    ("", "replica_id"): (-1,),
    ("", "replica_epoch"): (-1,),
    ("", "session_epoch"): (-1, 0, 1),
    ("", "current_leader_epoch"): (-1, 0),
    ("", "last_fetched_epoch"): (-1, 0),
    ("", "leader_epoch"): (0, 1),
    ("", "fetch_offset"): (0, 1, 5),
    ("", "log_start_offset"): (-1, 0),
    ("", "timestamp"): (-1, -2, -3, 1_700_000_000_000),
    ("", "offset"): (-1, 0, 1),
    ("", "session_timeout_ms"): (6_000, 10_000),
    ("", "rebalance_timeout_ms"): (100, 10_000),
    ("", "transaction_timeout_ms"): (1_000, 60_000),
    ("", "num_partitions"): (-1, 1, 2),
    ("", "count"): (1, 2, 3),
    ("", "replication_factor"): (-1, 1),
    ("", "broker_ids"): (1,),
    ("", "replicas"): (1,),
    ("", "resource_type"): (2, 2, 4, 32),
    ("", "config_operation"): (0, 0, 1, 2, 3),
    ("", "retention_time_ms"): (-1,),
    ("", "committed_offset"): (0, 5),
    ("", "committed_leader_epoch"): (-1, 0),
    ("", "response_partition_limit"): (2_000,),
    ("", "max_version_level"): (1, 2),
    ("", "upgrade_type"): (1, 2),
    ("", "endpoint_type"): (1,),
    ("", "duration_filter"): (-1, 0),
    ("", "producer_id_filters"): (0, 1),
    ("", "controller_id"): (1,),
    ("UnregisterBroker", "broker_id"): (99,),
    ("", "broker_id"): (1,),
    ("", "broker_epoch"): (-1, 0),
}
