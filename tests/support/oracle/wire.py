"""Raw requests over a plain socket, for any broker: the project's codecs, no client logic in between.

Each call sends one request in one version and returns the decoded answer, so that a script says exactly what a broker
is told and a test sees exactly what it says.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Sequence
from struct import unpack
from typing import Any

from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.processes.attempts import attempts
from tests.support.requests import answer_in, frame_of, request_of

EVERY_COORDINATOR = [f"probe-{number}" for number in range(100)]  # their hashes hit each of fifty partitions
CONCURRENT_TRANSACTIONS = 51
NOT_READY = {5, 14, 15, 16}  # leader or coordinator not available, loading, not coordinator


class Wire:
    """One connection. Calls raise OSError when nothing comes for `timeout_s`."""

    def __init__(self, bootstrap: str, client_id: str = "wire", *, timeout_s: float = 60.0) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.bootstrap = bootstrap
        self.client_id = client_id
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlations = itertools.count(1)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, request: Any, version: int) -> int:
        """Sends one request; returns its correlation id."""
        correlation = next(self._correlations)
        self.socket.sendall(frame_of(request, version, correlation, self.client_id))
        return correlation

    def receive(self, api_key: int, version: int, correlation: int) -> Any:
        """The next answer, which must be the one expected."""
        frame = self.next_frame()
        assert unpack(">i", frame[:4])[0] == correlation
        return answer_in(frame, api_key, version)

    def next_frame(self) -> bytes:
        """The next answer, without its length."""
        return self._exactly(unpack(">i", self._exactly(4))[0])

    def call(self, request: Any, version: int) -> Any:
        """One request and its answer."""
        return self.receive(type(request).API_KEY, version, self.send(request, version))

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            piece = self.socket.recv(size - len(parts))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            parts += piece
        return bytes(parts)

    # --- what most scripts begin with -----------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, /, **configs: str) -> None:
        """Creates a topic and waits until its partitions have leaders."""

        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        answer = self.call(request_of("CreateTopics", topics=[topic], timeout_ms=30_000), 7)
        made = answer.topics[0]
        assert made.error_code in (0, 36), answer
        for _ in attempts(f"{name} has leaders"):
            described = self.call(request_of("Metadata", topics=[{"name": name}]), 10).topics[0]
            # A broker of Kafka that has not heard of it yet may still know a deleted topic of that name.
            known = described.error_code == 0 and (made.error_code or described.topic_id == made.topic_id)
            if known and all(part.leader_id >= 0 for part in described.partitions):
                # Kafka names a leader before the leader knows: ask the replicas themselves.
                asked = [{"partition_index": n, "timestamp": -1} for n in range(len(described.partitions))]
                topics = [{"name": name, "partitions": asked}]
                described = self.call(request_of("ListOffsets", topics=topics), 5).topics[0]
                if all(part.error_code == 0 for part in described.partitions):
                    return

    def find_coordinator(self, key: str, key_type: int) -> None:
        """Asks until the coordinator of a group (0) or transactional id (1) is there; where this broker is it, until it has loaded."""
        for _ in attempts(f"there is a coordinator for {key}"):
            answer = self.call(request_of("FindCoordinator", key=key, key_type=key_type), 3)
            if answer.error_code == 0:
                if answer.port == int(self.bootstrap.rsplit(":", 1)[1]):
                    self._await_loaded([key], key_type)
                return
            assert answer.error_code in NOT_READY, answer

    def await_coordinators(self) -> None:
        """Waits until this broker, the only one of its cluster, has loaded every partition of both internal topics."""
        for key_type in (0, 1):
            self.find_coordinator("any", key_type)
            self._await_loaded(EVERY_COORDINATOR, key_type)

    def _await_loaded(self, keys: list[str], key_type: int) -> None:
        """Waits until no coordinator of these groups or transactional ids is loading."""
        for _ in attempts("the coordinators have loaded"):
            if key_type == 0:
                codes = {each.error_code for each in self.call(request_of("DescribeGroups", groups=keys), 5).groups}
            else:
                described = self.call(request_of("DescribeTransactions", transactional_ids=keys), 0)
                codes = {each.error_code for each in described.transaction_states}
            if not codes & NOT_READY:
                return

    def patiently(self, request: Any, version: int) -> Any:
        """The answer once the coordinator has loaded and has completed the transaction before."""
        for _ in attempts("the coordinator is ready"):
            answer = self.call(request, version)
            if answer.error_code not in {CONCURRENT_TRANSACTIONS, *NOT_READY}:
                break
        return answer

    def await_markers(self) -> None:
        """Waits until no transaction of this broker is ending: Kafka answers before the markers are written."""
        request = request_of("ListTransactions", state_filters=["PrepareCommit", "PrepareAbort"])
        for _ in attempts("no transaction is ending"):
            answer = self.call(request, 0)
            if answer.error_code not in NOT_READY and not answer.transaction_states:
                return

    def produce(
        self,
        version: int,
        topic: str,
        partition: int,
        values: Sequence[bytes],
        *,
        transactional_id: str | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        topic_id: bytes = bytes(16),
        timestamp: int | None = None,
    ) -> Any:
        """One batch to one partition, acks=all; its part of the answer."""
        when = int(time.time() * 1000) if timestamp is None else timestamp
        batch = build_batch(
            [NewRecord(None, value, when) for value in values],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional_id is not None,
        )
        data = {"name": topic, "topic_id": topic_id, "partition_data": [{"index": partition, "records": batch}]}
        request = request_of(
            "Produce", transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[data]
        )
        return self.call(request, version).responses[0].partition_responses[0]

    def fetch(
        self, topic: str, partition: int, offset: int, *, isolation_level: int = 0, max_bytes: int = 1 << 24
    ) -> Any:
        """One partition's part of a Fetch v11 answer."""
        request = request_of(
            "Fetch",
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=0,
            session_epoch=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}],
                }
            ],
        )
        return self.call(request, 11).responses[0].partitions[0]
