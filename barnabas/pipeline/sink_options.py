"""Sink options and accepted columns, checked before anything is written. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from barnabas.client.net.security_properties import SECURITY_PROPERTIES
from barnabas.pipeline.decisions import check_sink_id
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import ClientOptions, Options

EXACTLY_ONCE = "exactly_once"
PER_PARTITION = "per_partition"
AT_LEAST_ONCE = "at_least_once"
_DELIVERIES = (EXACTLY_ONCE, PER_PARTITION, AT_LEAST_ONCE)

RECORD_COLUMNS = ("key", "value", "headers", "topic", "partition")
_COLUMN_OPTIONS = ("files.path", "delta.path", "iceberg.table")  # where the other columns go
# of one of the outputs of `write_batch`
OUTPUT_OPTIONS = ("topic", "dead.letter.topic", *_COLUMN_OPTIONS, "iceberg.catalog.")

_OWN = (
    "topic",
    "dead.letter.topic",
    "delivery",
    "sink.id",
    "sink.adopt",
    "sink.forget",
    "transaction.timeout.ms",
    "two.phase.commit",
    *_COLUMN_OPTIONS,
    "includeHeaders",
    "checkpointLocation",
    "queryName",
)
_KAFKA = (
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "retry.backoff.ms",
    "metadata.max.age.ms",
    *SECURITY_PROPERTIES,
    "acks",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "max.block.ms",
    "max.request.size",
    "buffer.memory",
)
# not for batches
_KAFKA_TUNING = (
    "batch.size",
    "linger.ms",
    "max.in.flight.requests.per.connection",
    "retries",
)
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_STRINGY = ("string", "binary")


@dataclass(frozen=True)
class SinkOptions:
    """Options of a write."""

    client: ClientOptions
    delivery: str
    sink_id: str  # "" with at_least_once
    topic: str | None
    dead_topic: str | None
    files_path: str | None
    delta_path: str | None
    iceberg_table: str | None
    iceberg_catalog: dict[str, str]
    adopt: bool
    forgotten: int | None
    two_phase: bool | None  # None: as the cluster is configured
    transaction_timeout_ms: int | None  # None: the longest that the cluster allows
    compression: str | None
    max_request_size: int
    delivery_timeout_ms: int
    buffer_memory: int
    streaming: bool
    checkpoint: str | None  # a local folder; None if it is on another storage or not given

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Raises PipelineError for the first invalid option."""
        known = (*_OWN, *(f"kafka.{name}" for name in (*_KAFKA, *_KAFKA_TUNING)))
        options = Options(given, known, prefix="iceberg.catalog.")
        options.check_names()
        delivery = (options.text("delivery") or (EXACTLY_ONCE if streaming else AT_LEAST_ONCE)).lower()
        if delivery not in _DELIVERIES:
            raise PipelineError("delivery", delivery, f"choose from {', '.join(_DELIVERIES)}", "is not known")
        if delivery == PER_PARTITION and not streaming:
            raise PipelineError("delivery", delivery, "write a batch with exactly_once", "is for streams")
        for name in options.given(*_COLUMN_OPTIONS):
            if delivery != EXACTLY_ONCE:
                remedy = "set delivery = exactly_once"
                raise PipelineError(name, options.text(name), remedy, f"is not possible with {delivery}")
        acks = options.text("kafka.acks") or "all"
        if acks not in ("all", "-1"):
            raise PipelineError("kafka.acks", acks, "leave it out: rows are acknowledged by all", "would lose rows")
        if not options.flag("kafka.enable.idempotence", True):
            raise PipelineError("kafka.enable.idempotence", "false", "leave it out", "would double rows")
        compression = (options.text("kafka.compression.type") or "none").lower()
        if compression not in _COMPRESSIONS:
            raise PipelineError(
                "kafka.compression.type", compression, f"choose from {', '.join(_COMPRESSIONS)}", "is not known"
            )
        two_phase = (options.text("two.phase.commit") or "auto").lower()
        if two_phase not in ("auto", "true", "false"):
            raise PipelineError("two.phase.commit", two_phase, "write 'auto', 'true' or 'false'", "is not known")
        return cls(
            client=ClientOptions.parse(options),
            delivery=delivery,
            sink_id=_sink_id(options, delivery, streaming),
            topic=options.text("topic") or None,
            dead_topic=options.text("dead.letter.topic") or None,
            files_path=options.text("files.path") or None,
            delta_path=options.text("delta.path") or None,
            iceberg_table=options.text("iceberg.table") or None,
            iceberg_catalog=options.prefixed,
            adopt=options.flag("sink.adopt", False),
            forgotten=options.number("sink.forget", 1),
            two_phase=None if two_phase == "auto" else two_phase == "true",
            transaction_timeout_ms=options.number("transaction.timeout.ms", 1_000, 2**31 - 1),
            compression=None if compression == "none" else compression,
            max_request_size=options.number("kafka.max.request.size", 1_024, 2**30) or 1_048_576,
            delivery_timeout_ms=options.number("kafka.delivery.timeout.ms", 1, 2**31 - 1) or 120_000,
            buffer_memory=options.number("kafka.buffer.memory", 1, 2**34) or 32 * 1024 * 1024,
            streaming=streaming,
            checkpoint=_local(options.text("checkpointLocation")) or None,
        )

    @property
    def takes_columns(self) -> bool:
        """Whether the columns that are not of records are written."""
        return any((self.files_path, self.delta_path, self.iceberg_table))

    def producer_settings(self) -> dict[str, Any]:
        return {
            **self.client.as_arguments(),
            "compression_type": self.compression,
            "max_request_size": self.max_request_size,
            "delivery_timeout_ms": self.delivery_timeout_ms,
            "buffer_memory": self.buffer_memory,
        }


def _sink_id(options: Options, delivery: str, streaming: bool) -> str:
    sink_id = options.text("sink.id")
    if sink_id:
        check_sink_id(sink_id)
        return sink_id
    if delivery == AT_LEAST_ONCE:
        return ""
    if not streaming:
        raise PipelineError(
            "sink.id", None, "name this job: the next one of that name completes what it may leave", "is missing"
        )
    location = options.text("checkpointLocation")
    if not location:
        raise PipelineError(
            "sink.id", None, "set it, or the option checkpointLocation, which it is made of otherwise", "is missing"
        )
    whole = _local(location) or location.rstrip("/")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", whole.rpartition("/")[2])[-80:].strip("-")
    return f"{name or 'sink'}-{hashlib.sha256(whole.encode()).hexdigest()[:10]}"


def _local(location: str | None) -> str:
    path = re.sub(r"^file:/*", "/", (location or "").rstrip("/"))
    return "" if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path) else path


def check_columns(options: SinkOptions, columns: Sequence[tuple[str, str]]) -> None:
    """Raises PipelineError if a column (name, Spark type) is missing, has the wrong type, or would be dropped."""
    types = {name.lower(): kind for name, kind in columns}
    if len(types) != len(columns):
        raise PipelineError("columns", ", ".join(name for name, _ in columns), "rename one", "name a column twice")
    to_topics = options.topic is not None or "topic" in types
    if not to_topics and not options.takes_columns:
        raise PipelineError("topic", None, "set it, or give the rows a column 'topic'", "is missing")
    if not to_topics:
        if options.dead_topic is not None:
            raise PipelineError("dead.letter.topic", options.dead_topic, "leave it out", "has no use for files")
        return
    if "value" not in types:
        raise PipelineError("columns", ", ".join(types), "add a column 'value' of bytes or strings", "lack 'value'")
    allowed = {
        "key": _STRINGY,
        "value": _STRINGY,
        "topic": ("string",),
        "partition": ("int", "integer"),
        "headers": ("array<struct<key:string,value:binary>>",),
    }
    for name, kinds in allowed.items():
        kind = types.get(name)
        if kind is not None and kind not in kinds:
            remedy = f"cast it, as by CAST({name} AS {kinds[0].upper()})"
            raise PipelineError("columns", name, remedy, f"is {kind}, where {' or '.join(kinds)} is needed")
    others = [name for name in types if name not in allowed]
    if others and not options.takes_columns:
        remedy = "drop them, put them into 'value' (to_json(struct(*))), or set files.path, where they are written"
        raise PipelineError("columns", ", ".join(others), remedy, "would not be written")
