"""Metadata quorum series: kafka.server:type=raft-metrics, raft-channel-metrics and broker-metadata-metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.metrics.families import gauge, labelled
from barnabas.broker.metrics.histogram import Histogram
from barnabas.broker.peers.peers import Peers
from barnabas.broker.quorum.quorum import FETCHES, VOTES, Quorum
from barnabas.broker.scheduling.reactor import Reactor

SAMPLE_MS: Final = 2_000
SAMPLES: Final = 16  # half a minute, as the windows of Kafka's rates
RAFT: Final = "kafka_server_raftmetrics_"
CHANNEL: Final = "kafka_server_raftchannelmetrics_"
METADATA: Final = "kafka_server_brokermetadatametrics_"


class QuorumSeries:
    """Channel counts are those of this node's requests to voters, as in Kafka. Without no-op records, lag is 0 when all is applied."""

    def __init__(
        self, reactor: Reactor, quorum: Quorum, current: CurrentImage, peers: Peers, commit_latency: Histogram
    ) -> None:
        self._reactor = reactor
        self._quorum = quorum
        self._current = current
        self._peers = peers
        self._commit_latency = commit_latency
        self._end_offset = -1
        self._appended = self._fetched = 0
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES)  # time, appended, fetched

    def on_tick(self, now_ms: int) -> None:
        """Samples the growth of the log, as leader or as follower."""
        member = self._quorum.member
        if member is None:
            return
        end_offset = self._quorum.log_end_offset
        grown = max(end_offset - self._end_offset, 0) if self._end_offset >= 0 else 0
        self._end_offset = end_offset
        if member.is_leader:
            self._appended += grown
        else:
            self._fetched += grown
        if not self._samples or now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, self._appended, self._fetched))

    def _rates(self) -> tuple[float, float]:
        if not self._samples:
            return 0.0, 0.0
        then_ms, appended, fetched = self._samples[0]
        passed_s = max((self._reactor.clock.monotonic_ms() - then_ms) / 1000, 1.0)
        return (self._appended - appended) / passed_s, (self._fetched - fetched) / passed_s

    def collect(self) -> Iterator[Metric]:
        """All families; those of the log once it is open."""
        image = self._current.image
        behind = False
        member = self._quorum.member
        if member is not None:
            behind = image.offset + 1 < self._quorum.high_watermark
            state = member.role.value if self._quorum.is_voter else "observer"
            yield labelled(
                GaugeMetricFamily, f"{RAFT}current_state", "The role of this node.", "current_state", [(state, 1)]
            )
            appended, fetched = self._rates()
            for name, doc, value in (
                ("current_leader", "The leader of the quorum; -1 if it is unknown.", self._quorum.leader_id),
                ("current_vote", "The candidate that this node voted for; -1 without.", member.epoch_state.voted_id),
                ("current_epoch", "The epoch of the quorum.", self._quorum.leader_epoch),
                ("high_watermark", "Everything below this offset is committed.", self._quorum.high_watermark),
                ("log_end_offset", "The offset after the last one of the log.", self._quorum.log_end_offset),
                ("number_of_voters", "Voters of the quorum.", len(self._quorum.voters)),
                ("append_records_rate", "Records a second that this leader appended.", appended),
                ("fetch_records_rate", "Records a second that this follower fetched.", fetched),
                ("commit_latency_avg", "From append to publication, in ms.", self._commit_latency.mean_ms()),
                (
                    "commit_latency_max_total",
                    "The longest time from append to publication, in ms.",
                    self._commit_latency.greatest_ms(),
                ),
                ("number_unknown_voter_connections", "Voters without a known address.", 0),
            ):
                yield gauge(RAFT + name, doc, value)
        yield from self._channel()
        lag_ms = max(self._reactor.clock.now_ms() - image.timestamp_ms, 0) if behind else 0
        for name, doc, value in (
            ("last_applied_record_offset", "Offset of the last record in the published image.", image.offset),
            (
                "last_applied_record_timestamp",
                "The timestamp of that record, in ms since the epoch.",
                image.timestamp_ms,
            ),
            ("last_applied_record_lag_ms", "Age of that record while committed ones are not applied.", lag_ms),
            ("metadata_load_error_count", "Always 0: a node stops at the first error.", 0),
            ("metadata_apply_error_count", "Always 0: a node stops at the first error.", 0),
        ):
            yield gauge(METADATA + name, doc, value)

    def _channel(self) -> Iterator[Metric]:
        found = [self._peers.traffic[purpose] for purpose in (FETCHES, VOTES) if purpose in self._peers.traffic]
        for name, doc, value in (
            ("outgoing_byte", "Bytes sent to voters.", sum(one.bytes_out for one in found)),
            ("incoming_byte", "Bytes received from voters.", sum(one.bytes_in for one in found)),
            ("request", "Requests sent to voters.", sum(one.requests for one in found)),
            ("response", "Answers received from voters.", sum(one.responses for one in found)),
        ):
            yield CounterMetricFamily(CHANNEL + name, doc, value)
