"""SinkAdmin: shows the exactly-once sinks of a cluster, and ends what an abandoned query has left open."""

from __future__ import annotations

from typing import NamedTuple

from barnabas.client.admin import Admin, TransactionDescription
from barnabas.client.errors import KafkaError
from barnabas.pipeline import decisions
from barnabas.pipeline.decision_record import BatchDecision, PreparedPart
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.topic_sink import TopicSink
from barnabas.pipeline.transaction_requests import TransactionRequests
from barnabas.pipeline.two_phase_commit import CommitCoordinator


class SinkState(NamedTuple):
    """One sink. `open` are its tasks' transactions that have not ended, oldest first."""

    sink_id: str
    decision: BatchDecision | None
    open: tuple[TransactionDescription, ...]

    def is_decided(self, transaction: TransactionDescription) -> bool:
        """Whether the last decision commits it."""
        identity = f"{transaction.producer_id}-{transaction.producer_epoch}"
        handles = self.decision.handles if self.decision is not None else ()
        return any((part.key, part.token) == (transaction.transactional_id, identity) for part in handles)


class SinkAdmin(Admin):
    """An admin client that knows the names and decisions of sinks."""

    async def open_of_sinks(self) -> dict[str, tuple[TransactionDescription, ...]]:
        """The open transactions of tasks by sink id, oldest first. Raises KafkaError."""
        found: dict[str, list[TransactionDescription]] = {}
        for listing in await self.list_transactions(states=["Ongoing"]):
            sink_id = decisions.sink_of(listing.transactional_id)
            if sink_id is None:
                continue
            try:
                described = await self.describe_transaction(listing.transactional_id)
            except KafkaError:
                continue  # it was removed after it was listed
            if described.state == "Ongoing":
                found.setdefault(sink_id, []).append(described)
        return {name: tuple(sorted(each, key=lambda t: t.start_time_ms)) for name, each in sorted(found.items())}

    async def list_sinks(self) -> list[SinkState]:
        """The sinks that have decided a batch or have an open transaction. Raises KafkaError."""
        opened = await self.open_of_sinks()
        groups = (decisions.sink_of_group(group.group_id) for group in await self.list_groups())
        found = []
        for name in sorted({*opened, *(name for name in groups if name is not None)}):
            try:
                decision = await self._coordinator(name).read_decision(stable=False)
            except PipelineError:  # a group of other software
                decision = None
            if decision is not None or name in opened:
                found.append(SinkState(name, decision, opened.get(name, ())))
        return found

    async def abandon_sink(self, sink_id: str) -> tuple[list[PreparedPart], list[PreparedPart]]:
        """Fences the sink's driver and aborts its open transactions. Returns the aborted, and those decided as committed."""
        return await self._coordinator(sink_id).run(decisions.abandon())

    def _coordinator(self, sink_id: str) -> CommitCoordinator:
        requests = TransactionRequests(self._cluster, timeout_ms=self._cluster.request_timeout_ms)
        return CommitCoordinator(sink_id, requests, [TopicSink(sink_id, requests=requests)])
