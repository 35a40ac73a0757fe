"""Discovery: partitions, first and last offsets and offsets by time, asked from the cluster on the driver.
End offsets are last stable offsets under read_committed (KIP-98), else high watermarks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from barnabas.client.errors import BrokerUnreachable, KafkaError, RequestTimedOut
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.metadata import ClusterMetadata
from barnabas.client.net.offsets import EARLIEST, LATEST, epoch_ends, list_offsets
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.pipeline.connection import connected, unreachable
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import Bound, ConsumerStrategy, SourceOptions
from barnabas.pipeline.planning import OffsetRange, Offsets, Pushdown
from barnabas.protocol.messages.admin import DescribeLogDirsRequest
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.runtime import loop

T = TypeVar("T")

_PATIENCE_MS = 2_000
_ASK_AGAIN_MS = 100


def ask(options: SourceOptions, question: Callable[[Discovery], Coroutine[Any, Any, T]]) -> T:
    """Connects, asks, disconnects: for Spark's synchronous calls on the driver."""

    async def main() -> T:
        cluster = await connected(options.client)
        try:
            return await question(Discovery(cluster, options))
        except (BrokerUnreachable, RequestTimedOut) as error:
            raise unreachable(options.client, error) from error
        finally:
            await cluster.close()

    return loop.run(main())


class Discovery:
    """Queries of a started `cluster` about one subscription."""

    def __init__(self, cluster: NetworkClient, options: SourceOptions) -> None:
        self._cluster = cluster
        self.options = options
        self._epochs: Offsets = {}  # epochs of the leaders that returned the last offsets

    async def partitions(self, expected: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Returns every partition that the subscription names now, in order.

        A broker's metadata may be stale: the request is repeated for a while before a missing partition is an error.
        `expected` partitions may be missing with `failOnDataLoss` off. Raises PipelineError.
        """
        subscription = self.options.subscription
        known = tuple(expected)
        if subscription.option == "subscribePattern":
            self._cluster.all_topics = True
        else:
            self._cluster.add_topics(subscription.topics)
        named = dict.fromkeys((*known, *subscription.partitions, *(TopicPartition(t, 0) for t in subscription.topics)))
        patient_until = self.now_ms + _PATIENCE_MS
        while True:
            counts = self._counts(await self._cluster.fresh_metadata())
            if all(tp.partition < counts.get(tp.topic, 0) for tp in named):
                break
            if self.now_ms >= patient_until:
                if self.options.fail_on_data_loss or not known:
                    self._check_there(subscription, counts)
                break
            await asyncio.sleep(_ASK_AGAIN_MS / 1000)
        if subscription.partitions:
            return sorted(tp for tp in subscription.partitions if tp.partition < counts.get(tp.topic, 0))
        return [TopicPartition(name, p) for name in sorted(counts) for p in range(counts[name])]

    def _counts(self, metadata: ClusterMetadata) -> dict[str, int]:
        """Partitions of each subscribed topic that exists."""
        subscription = self.options.subscription
        return {
            name: len(info.partitions)
            for name, info in metadata.topics.items()
            if subscription.matches(name)
            and info.error is ErrorCode.NONE
            and not (subscription.pattern and info.is_internal)
        }

    def _check_there(self, subscription: ConsumerStrategy, counts: Mapping[str, int]) -> None:
        missing = [name for name in subscription.topics if name not in counts]
        known = self._cluster.metadata.topics
        refused = [n for n in missing if n in known and known[n].error is ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        if refused:
            raise PipelineError(
                subscription.option,
                subscription.value,
                "allow this user to describe and read it, or log in as another one",
                f"names a topic that this user may not see: {', '.join(refused)}",
            )
        if missing:
            raise PipelineError(
                subscription.option,
                subscription.value,
                "create the topic, or correct its name",
                f"names a topic that does not exist: {', '.join(missing)}",
            )
        for tp in subscription.partitions:
            if tp.partition >= counts[tp.topic]:
                raise PipelineError(
                    subscription.option,
                    subscription.value,
                    f"name partitions from 0 to {counts[tp.topic] - 1}",
                    f"names partition {tp.partition} of {tp.topic!r}, which does not exist",
                )

    async def firsts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Log start offsets."""
        return await self._listed(dict.fromkeys(partitions, EARLIEST))

    async def lasts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Offsets after the last readable records."""
        return await self._listed(dict.fromkeys(partitions, LATEST))

    def epochs(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Leader epochs of the last offsets, else those of the metadata; −1 unknown."""
        known = self._cluster.metadata.leader_epochs
        return {tp: self._epochs.get(tp, known.get(tp, -1)) for tp in partitions}

    async def truncated(self, seen: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> Offsets:
        """Partitions truncated (KIP-320) below the offsets in `seen` (with leader epochs), and the offsets of the cuts."""
        now = self.epochs(seen)
        changed = {tp: epochs[tp] for tp in seen if epochs.get(tp, -1) >= 0 and now[tp] != epochs[tp] and now[tp] >= 0}
        ends = await epoch_ends(self._cluster, changed)
        return {tp: end for tp, end in ends.items() if 0 <= end < seen[tp]}

    async def by_time(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset at or after a timestamp (ms) in each partition; −1 without one."""
        return await self._listed(timestamps)

    async def record_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """Mean sizes of the records in the leaders' logs, without partitions whose broker does not tell this client."""
        firsts, lasts = await self.firsts(partitions), await self.lasts(partitions)
        by_leader: dict[int, dict[str, list[int]]] = {}
        for tp in lasts:
            leader = self._cluster.metadata.leaders.get(tp)
            if leader is not None and firsts[tp] < lasts[tp]:
                by_leader.setdefault(leader, {}).setdefault(tp.topic, []).append(tp.partition)
        found = {}
        for leader, wanted in by_leader.items():
            topics = [TopicPartitions(topic=topic, partitions=each) for topic, each in wanted.items()]
            try:
                response = await self._cluster.request(DescribeLogDirsRequest(topics=topics), node_id=leader)
            except KafkaError:
                continue
            for topic in (topic for directory in response.results for topic in directory.topics):
                for replica in topic.partitions:
                    tp = TopicPartition(topic.name, replica.partition_index)
                    if tp in lasts and firsts[tp] < lasts[tp]:
                        found[tp] = replica.partition_size / (lasts[tp] - firsts[tp])
        return found

    @property
    def now_ms(self) -> int:
        """Monotonic."""
        return self._cluster.clock.monotonic_ms()

    async def starts(self, partitions: list[TopicPartition], firsts: Offsets, lasts: Offsets) -> Offsets:
        """Start offsets by the options. Raises PipelineError for a missing partition, offset or time."""
        bound = self.options.start
        wanted = self._wanted(bound, partitions)
        if bound.by_time:
            found = await self.by_time(wanted)
            for tp, offset in found.items():
                if offset < 0:
                    if self.options.no_later_start == "error":
                        raise PipelineError(
                            bound.option,
                            wanted[tp],
                            "name an earlier time, or set 'startingOffsetsByTimestampStrategy' to 'latest'",
                            f"is later than every record of partition {tp.partition} of {tp.topic!r}",
                        )
                    found[tp] = lasts[tp]
            return found
        return {tp: self._offset(bound, tp, at, firsts[tp], lasts[tp]) for tp, at in wanted.items()}

    async def ends(self, partitions: list[TopicPartition], firsts: Offsets, lasts: Offsets) -> Offsets:
        """End offsets by the options; a time after the last record means the log's end."""
        bound = self.options.end
        wanted = self._wanted(bound, partitions)
        if bound.by_time:
            found = await self.by_time(wanted)
            return {tp: lasts[tp] if offset < 0 else offset for tp, offset in found.items()}
        return {tp: self._offset(bound, tp, at, firsts[tp], lasts[tp]) for tp, at in wanted.items()}

    def _wanted(self, bound: Bound, partitions: list[TopicPartition]) -> Offsets:
        if bound.everywhere is not None:
            return dict.fromkeys(partitions, bound.everywhere)
        for tp in (*partitions, *bound.at):
            if tp not in bound.at or tp not in partitions:
                problem = "leaves out" if tp not in bound.at else "names a partition that does not exist:"
                raise PipelineError(
                    bound.option,
                    None,
                    "name every partition that is read, and no other",
                    f"{problem} partition {tp.partition} of {tp.topic!r}",
                )
        return {tp: bound.at[tp] for tp in partitions}

    def _offset(self, bound: Bound, tp: TopicPartition, at: int, first: int, last: int) -> int:
        if at == EARLIEST:
            return first
        if at == LATEST:
            return last
        if first <= at <= last:
            return at
        if not self.options.fail_on_data_loss:
            return min(max(at, first), last)
        raise PipelineError(
            bound.option,
            at,
            "give offsets within that, 'earliest' or 'latest', or set 'failOnDataLoss' to 'false'",
            f"is out of range: partition {tp.partition} of {tp.topic!r} holds offsets {first} to {last}",
        )

    async def _listed(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        if not timestamps:
            return {}
        found = await list_offsets(self._cluster, timestamps, read_committed=self.options.read_committed)
        told = {tp: found[tp].leader_epoch for tp, timestamp in timestamps.items() if timestamp == LATEST}
        self._epochs |= {tp: epoch for tp, epoch in told.items() if epoch is not None and epoch >= 0}
        return {tp: found[tp].offset for tp in timestamps}


async def plan_batch(discovery: Discovery, pushed: Pushdown) -> list[OffsetRange]:
    """Ranges of a batch, narrowed by filters. Raises PipelineError for missing partitions or an end before the start."""
    partitions = await discovery.partitions()
    firsts = await discovery.firsts(partitions)
    lasts = await discovery.lasts(partitions)
    starts = await discovery.starts(partitions, firsts, lasts)
    ends = await discovery.ends(partitions, firsts, lasts)
    for tp in partitions:
        if starts[tp] > ends[tp]:
            raise PipelineError(
                discovery.options.end.option,
                ends[tp],
                "end at or after the beginning",
                f"lies before the beginning of partition {tp.partition} of {tp.topic!r}, offset {starts[tp]}",
            )
    epochs = discovery.epochs(partitions)
    ranges = pushed.narrowed(OffsetRange(*tp, starts[tp], ends[tp], epochs[tp]) for tp in partitions)
    if pushed.timestamp_min_ms is not None and pushed.timestamp_min_ms >= 0:
        times = await discovery.by_time({TopicPartition(r.topic, r.partition): pushed.timestamp_min_ms for r in ranges})
        later = []
        for r in ranges:
            first = times[TopicPartition(r.topic, r.partition)]
            if 0 <= first < r.end:
                later.append(r._replace(start=max(r.start, first)))
        ranges = later
    return ranges
