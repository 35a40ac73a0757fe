"""Describes requests and their outcomes as events: pure functions over messages, with bounded output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from barnabas.errors import ErrorCode, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.records import decode_records, iter_batches, read_header

Fields = dict[str, Any]
TopicName = Callable[[bytes], str | None]

RECORDS_KEPT: Final = 10  # of a produced batch
DECODED_RECORDS_MAX: Final = 100  # a batch of more records is described by its header alone
DECODED_BYTES_MAX: Final = 32_768
BATCHES_KEPT: Final = 1_000  # of one partition in one answer
PARTITIONS_KEPT: Final = 1_000
TEXT_CHARS_MAX: Final = 60
READ_COMMITTED: Final = 1


def error_name(code: int) -> str:
    """ "" for none."""
    if not code:
        return ""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"


def text(data: bytes | None) -> str | None:
    """Printable text, else hexadecimal; shortened."""
    if data is None:
        return None
    head = data[: 4 * TEXT_CHARS_MAX]
    try:
        shown = bytes(head).decode()
    except UnicodeDecodeError:
        shown = ""
    if not shown.isprintable() or (data and not shown):
        shown = f"0x{bytes(head).hex()}"
    return shown if len(shown) <= TEXT_CHARS_MAX else shown[: TEXT_CHARS_MAX - 1] + "…"


def or_null(shown: str | None) -> str:
    """A key or a value in a sentence."""
    return "null" if shown is None else shown


def _topic(owner: Any, topic_name: TopicName, field: str = "name") -> str:
    """The topic of a structure that names it, or its id in later versions."""
    name: str = getattr(owner, field)
    return name or topic_name(owner.topic_id) or f"id {owner.topic_id.hex()}"


# -- Produce


def produced_batches(request: Any) -> dict[tuple[Any, int], Fields]:
    """What the batches of a Produce are, by topic (name or id) and partition. Call it before the handler: they are views."""
    found: dict[tuple[Any, int], Fields] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None and len(found) < PARTITIONS_KEPT:
                found[topic.name or topic.topic_id, data.index] = _batch(data.records)
    return found


def _batch(records: Buffer) -> Fields:
    try:
        header = read_header(records)
    except RemoteProtocolError:
        return {"size_bytes": len(records)}
    kept: list[tuple[str | None, str | None]] = []
    if header.record_count <= DECODED_RECORDS_MAX and len(records) <= DECODED_BYTES_MAX:
        try:
            decoded = decode_records(records, 0, header, size_bytes_max=DECODED_BYTES_MAX)
            kept = [(text(each.key), text(each.value)) for each in decoded[:RECORDS_KEPT]]
        except RemoteProtocolError:  # the broker refuses it, too
            pass
    return {
        "count": header.record_count,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "crc": header.crc,
        "size_bytes": len(records),
        "records": kept,
    }


def _produce(request: Any, response: Any, topic_name: TopicName, batches: Any) -> Iterable[Fields]:
    common = {"kind": "produce", "acks": request.acks, "transactional_id": request.transactional_id or ""}
    if response is None:  # acks=0: the client does not learn the offsets
        for (topic, partition), batch in batches.items():
            name = topic if isinstance(topic, str) else topic_name(topic) or f"id {topic.hex()}"
            yield {**common, **batch, "topic": name, "partition": partition}
        return
    for topic in response.responses:
        name = _topic(topic, topic_name)
        for each in topic.partition_responses:
            yield {
                **common,
                **batches.get((topic.name or topic.topic_id, each.index), {}),
                "topic": name,
                "partition": each.index,
                "base_offset": each.base_offset,
                "error": error_name(each.error_code),
            }


def refused_batches(request: Any, error: str, topic_name: TopicName) -> Iterable[Fields]:
    """The batches of a Produce that had no effect."""
    for each in _produce(request, None, topic_name, produced_batches(request)):
        yield {**each, "error": error}


# -- Fetch


def _fetch(request: Any, response: Any, topic_name: TopicName, _: Any) -> Iterable[Fields]:
    asked = {
        (topic.topic or topic.topic_id, each.partition): each.fetch_offset
        for topic in islice(request.topics, PARTITIONS_KEPT)
        for each in islice(topic.partitions, PARTITIONS_KEPT)
    }
    isolation = "read_committed" if request.isolation_level == READ_COMMITTED else "read_uncommitted"
    for topic in response.responses:
        for data in topic.partitions:
            if not data.records:
                continue
            batches = _batches(data.records)
            if batches:
                yield {
                    "kind": "fetch",
                    "topic": _topic(topic, topic_name, "topic"),
                    "partition": data.partition_index,
                    "isolation": isolation,
                    "fetch_offset": asked.get((topic.topic or topic.topic_id, data.partition_index), -1),
                    "first_offset": batches[0][0],
                    "last_offset": batches[-1][1],
                    "high_watermark": data.high_watermark,
                    "last_stable_offset": data.last_stable_offset,
                    "batches": batches,
                    "aborted": [
                        (each.producer_id, each.first_offset)
                        for each in islice(data.aborted_transactions or (), PARTITIONS_KEPT)
                    ],
                }


def _batches(records: Buffer) -> list[tuple[int, int, int, int, bool, bool]]:
    try:
        return [
            (
                each.base_offset,
                each.last_offset,
                each.producer_id,
                each.producer_epoch,
                each.is_transactional,
                each.is_control,
            )
            for _, each in islice(iter_batches(records), BATCHES_KEPT)
        ]
    except RemoteProtocolError:
        return []


# -- transactions


def _init_producer_id(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    yield {
        "kind": "init_producer_id",
        "transactional_id": request.transactional_id or "",
        "producer_id": response.producer_id,
        "producer_epoch": response.producer_epoch,
        "asked_id": request.producer_id,
        "asked_epoch": request.producer_epoch,
        "timeout_ms": request.transaction_timeout_ms,
        "error": error_name(response.error_code),
    }


def _add_partitions(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    """Of clients; brokers send version 4, with several transactions."""
    results = response.results_by_topic_v3_and_below
    codes = [each.partition_error_code for topic in results for each in topic.results_by_partition]
    yield {
        "kind": "add_partitions",
        "transactional_id": request.v3_and_below_transactional_id,
        "producer_id": request.v3_and_below_producer_id,
        "producer_epoch": request.v3_and_below_producer_epoch,
        "partitions": _partitions((topic.name, topic.partitions) for topic in request.v3_and_below_topics),
        "error": error_name(next(filter(None, codes), 0)),
    }


def _partitions(topics: Iterable[tuple[str, Iterable[int]]]) -> list[tuple[str, int]]:
    return list(islice(((name, each) for name, ids in topics for each in ids), PARTITIONS_KEPT))


def _add_offsets(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    yield {
        "kind": "add_partitions",
        "transactional_id": request.transactional_id,
        "producer_id": request.producer_id,
        "producer_epoch": request.producer_epoch,
        "group": request.group_id,
        "error": error_name(response.error_code),
    }


def _end_txn(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    yield {
        "kind": "end_txn",
        "transactional_id": request.transactional_id,
        "producer_id": request.producer_id,
        "producer_epoch": request.producer_epoch,
        "committed": request.committed,
        "next_id": response.producer_id,
        "next_epoch": response.producer_epoch,
        "error": error_name(response.error_code),
    }


def _markers(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    codes: dict[tuple[int, str, int], int] = {
        (result.producer_id, topic.name, each.partition_index): each.error_code
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
    }
    for marker in islice(request.markers, PARTITIONS_KEPT):
        partitions = _partitions((topic.name, topic.partition_indexes) for topic in marker.topics)
        wrong = next(filter(None, (codes.get((marker.producer_id, *each), 0) for each in partitions)), 0)
        yield {
            "kind": "markers",
            "producer_id": marker.producer_id,
            "producer_epoch": marker.producer_epoch,
            "committed": marker.transaction_result,
            "partitions": partitions,
            "error": error_name(wrong),
        }


# -- groups


def _join(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    yield _membership("JoinGroup", request, response.error_code, response.member_id, response.generation_id)


def _sync(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    yield _membership("SyncGroup", request, response.error_code, request.member_id, request.generation_id)


def _heartbeat(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    if response.error_code:
        yield _membership("Heartbeat", request, response.error_code, request.member_id, request.generation_id)


def _leave(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    members = [each.member_id for each in islice(request.members, PARTITIONS_KEPT)] or [request.member_id]
    for member in members:
        yield _membership("LeaveGroup", request, response.error_code, member, -1)


def _consumer_heartbeat(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    if request.member_epoch <= 0 or response.error_code or response.assignment is not None:
        member = response.member_id or request.member_id
        yield _membership("ConsumerGroupHeartbeat", request, response.error_code, member, response.member_epoch)


def _delete_groups(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    for each in islice(response.results, PARTITIONS_KEPT):
        yield {"kind": "group", "api": "DeleteGroups", "group": each.group_id, "error": error_name(each.error_code)}


def _membership(api: str, request: Any, code: int, member: str | None, generation: int) -> Fields:
    return {
        "kind": "group",
        "api": api,
        "group": request.group_id,
        "member": member or "",
        "generation": generation,
        "error": error_name(code),
    }


def _commit(request: Any, response: Any, topic_name: TopicName, _: Any) -> Iterable[Fields]:
    """OffsetCommit and TxnOffsetCommit: what was accepted, and the first error if one was not."""
    codes = {
        (_topic(topic, topic_name), each.partition_index): each.error_code
        for topic in response.topics
        for each in topic.partitions
    }
    asked = [
        (_topic(topic, topic_name), each.partition_index, each.committed_offset)
        for topic in request.topics
        for each in topic.partitions
    ]
    transactional = hasattr(request, "transactional_id")
    yield {
        "kind": "commit_offsets",
        "group": request.group_id,
        "member": request.member_id,
        "generation": request.generation_id if transactional else request.generation_id_or_member_epoch,
        "offsets": [each for each in islice(asked, PARTITIONS_KEPT) if not codes.get(each[:2], 0)],
        "transactional_id": request.transactional_id if transactional else "",
        "producer_id": request.producer_id if transactional else -1,
        "producer_epoch": request.producer_epoch if transactional else -1,
        "error": error_name(next(filter(None, codes.values()), 0)),
    }


def _delete_offsets(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    asked = _partitions((topic.name, (each.partition_index for each in topic.partitions)) for topic in request.topics)
    yield {
        "kind": "commit_offsets",
        "group": request.group_id,
        "offsets": [(*each, -1) for each in asked],
        "deleted": True,
        "error": error_name(response.error_code),
    }


def _list_offsets(request: Any, response: Any, *_: Any) -> Iterable[Fields]:
    found = (
        (topic.name, each.partition_index, each.offset)
        for topic in response.topics
        for each in topic.partitions
        if not each.error_code
    )
    yield {"kind": "list_offsets", "offsets": list(islice(found, PARTITIONS_KEPT))}


Describe = Callable[[Any, Any, TopicName, Any], Iterable[Fields]]

DESCRIBED: Final[dict[int, Describe]] = {  # by API key
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    8: _commit,
    11: _join,
    12: _heartbeat,
    13: _leave,
    14: _sync,
    22: _init_producer_id,
    24: _add_partitions,
    25: _add_offsets,
    26: _end_txn,
    27: _markers,
    28: _commit,
    42: _delete_groups,
    47: _delete_offsets,
    68: _consumer_heartbeat,
}
