"""A run of transactional producers against one broker, by raw requests: what it observes is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.errors import ErrorCode
from barnabas.protocol.records import decode_records, iter_batches, read_control
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.requests import request_of

TOPIC = "transactions-diff"
PARTITIONS = 3
SETTLING = ("Ongoing", "PrepareCommit", "PrepareAbort")
NOT_READY = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
WAIT_SECONDS_MAX = 120.0


def name(code: int) -> str:
    return ErrorCode(code).name


class Script:
    """A run against one broker: one connection, and what was observed."""

    def __init__(self, address: str, run: str) -> None:
        self.wire = Wire(address)
        self.run = run
        self.seen: list[Any] = []
        self._ids: dict[int, str] = {-1: "none"}

    def note(self, *observed: Any) -> None:
        self.seen.append(observed)

    def producer_id(self, number: int) -> str:
        return self._ids.setdefault(number, f"#{len(self._ids)}")

    def producer(self, label: str) -> Producer:
        return Producer(self, f"{label}-{self.run}")

    def next_offset(self, partition: int) -> int:
        """The end of a partition, so that a script can look at what it wrote alone."""
        return int(self.wire.fetch(TOPIC, partition, 0).high_watermark)

    def note_log(self, partition: int, offset: int) -> None:
        """Batches from an offset on: who wrote them, and what markers say."""
        fetched = self.wire.fetch(TOPIC, partition, offset)
        for at, header in iter_batches(fetched.records):
            control = ""
            if header.is_control:
                control = ("ABORT", "COMMIT")[read_control(decode_records(fetched.records, at, header)[0]).type]
            self.note(
                "batch", self.producer_id(header.producer_id), header.producer_epoch, header.record_count, control
            )
        self.note("last stable offset behind by", fetched.high_watermark - fetched.last_stable_offset)


class Producer:
    """A transactional id as one client uses it; what it does is noted."""

    def __init__(self, script: Script, transactional_id: str) -> None:
        self.script = script
        self.wire = script.wire
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[int, int] = {}

    def init(self, version: int = 4, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1) -> str:
        request = request_of(
            "InitProducerId",
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        for _ in attempts("there is a coordinator"):
            answer = self.wire.call(request, version)
            if name(answer.error_code) not in NOT_READY:
                break
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        self.script.note(
            "init", name(answer.error_code), self.script.producer_id(answer.producer_id), answer.producer_epoch
        )
        return name(answer.error_code)

    def add(self, *partitions: int, version: int = 3, epoch: int | None = None, topic: str = TOPIC) -> None:
        answer = self.wire.call(
            request_of(
                "AddPartitionsToTxn",
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
                v3_and_below_topics=[{"name": topic, "partitions": list(partitions)}],
            ),
            version,
        )
        (results,) = answer.results_by_topic_v3_and_below
        codes = sorted((r.partition_index, name(r.partition_error_code)) for r in results.results_by_partition)
        self.script.note("add", codes)

    def by_broker(
        self,
        *partitions: int,
        version: int,
        verify: bool,
        epoch: int | None = None,
        transactional_id: str | None = None,
    ) -> None:
        """AddPartitionsToTxn as brokers send it."""
        transaction = {
            "transactional_id": self.transactional_id if transactional_id is None else transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "verify_only": verify,
            "topics": [{"name": TOPIC, "partitions": list(partitions)}],
        }
        answer = self.wire.call(request_of("AddPartitionsToTxn", transactions=[transaction]), version)
        (result,) = answer.results_by_transaction
        codes = [
            sorted((r.partition_index, name(r.partition_error_code)) for r in topic.results_by_partition)
            for topic in result.topic_results
        ]
        self.script.note("by broker", name(answer.error_code), codes)

    def add_offsets(self, group: str, version: int = 3, epoch: int | None = None) -> None:
        answer = self.wire.call(
            request_of(
                "AddOffsetsToTxn",
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch if epoch is None else epoch,
                group_id=group,
            ),
            version,
        )
        self.script.note("add offsets", name(answer.error_code))

    def commit_offset(self, group: str, offset: int, version: int, epoch: int | None = None) -> None:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        request = request_of(
            "TxnOffsetCommit",
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            topics=[{"name": TOPIC, "partitions": [partition]}],
        )
        for _ in attempts("there is a coordinator"):
            code = self.wire.call(request, version).topics[0].partitions[0].error_code
            if name(code) not in NOT_READY:
                break
        self.script.note("commit offset", name(code))

    def produce(
        self, partition: int = 0, version: int = 11, epoch: int | None = None, sequence: int | None = None
    ) -> str:
        answer = self.wire.produce(
            version,
            TOPIC,
            partition,
            [b"x"],
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=self._sequences.get(partition, 0) if sequence is None else sequence,
        )
        if answer.error_code == 0 and sequence is None:
            self._sequences[partition] = self._sequences.get(partition, 0) + 1
        self.script.note("produce", name(answer.error_code))  # our messages say more than Kafka's
        return name(answer.error_code)

    def end(
        self, outcome: str, version: int, producer_id: int | None = None, epoch: int | None = None, adopt: bool = True
    ) -> None:
        answer = self.wire.call(
            request_of(
                "EndTxn",
                transactional_id=self.transactional_id,
                producer_id=self.producer_id if producer_id is None else producer_id,
                producer_epoch=self.epoch if epoch is None else epoch,
                committed=outcome == "commit",
            ),
            version,
        )
        if answer.error_code == 0 and version >= 5 and adopt:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        self.script.note(
            "end", outcome, name(answer.error_code), self.script.producer_id(answer.producer_id), answer.producer_epoch
        )

    def state(self) -> Any:
        return self.wire.call(
            request_of("DescribeTransactions", transactional_ids=[self.transactional_id]), 0
        ).transaction_states[0]

    def describe(self) -> None:
        state = self.state()
        self.script.note(
            "describe",
            name(state.error_code),
            state.transaction_state,
            self.script.producer_id(state.producer_id),
            state.producer_epoch,
            state.transaction_timeout_ms,
            [(topic.topic, sorted(topic.partitions)) for topic in state.topics],
            state.transaction_start_time_ms > 0,
        )

    def settled(self, *states: str) -> None:
        """Waits until markers are written (until none of `states`), then notes the state."""
        for _ in attempts("it is settled", WAIT_SECONDS_MAX):
            if self.state().transaction_state not in (states or SETTLING[1:]):
                break
        self.describe()

    def marker(self, version: int, epoch: int, outcome: str, partition: int = 0, **fields: Any) -> None:
        marker = {
            "producer_id": fields.get("producer_id", self.producer_id),
            "producer_epoch": epoch,
            "transaction_result": outcome == "commit",
            "topics": [{"name": fields.get("topic", TOPIC), "partition_indexes": [partition]}],
            "coordinator_epoch": fields.get("coordinator_epoch", 0),
            "transaction_version": fields.get("transaction_version", 2),
        }
        answer = self.wire.call(request_of("WriteTxnMarkers", markers=[marker]), version)
        (result,) = answer.markers
        self.script.note("marker", [(p.partition_index, name(p.error_code)) for p in result.topics[0].partitions])


def play(address: str, script: Callable[[Script], None], run: str) -> list[Any]:
    played = Script(address, run)
    try:
        played.wire.create_topic(TOPIC, PARTITIONS)
        played.wire.await_coordinators()
        script(played)
    finally:
        played.wire.close()
    return played.seen
