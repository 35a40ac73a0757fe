"""The series of quotas: rates and throttle times of clients with quotas, under names of Kafka; a bounded number of labels."""

from __future__ import annotations

from barnabas.broker.metrics import server_series
from barnabas.broker.metrics.server_series import LABEL_CHARACTERS_MAX, QuotaSeries
from barnabas.broker.quotas.client_quotas import QuotaKind, QuotaMeter
from barnabas.protocol.messages.quotas import AlterClientQuotasRequest
from tests.support.broker.nodes import Nodes
from tests.support.broker.scrapes import scrape
from tests.support.oracle.quota_requests import entry


class Clock:
    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return 0


async def test_a_client_with_quotas_has_series(nodes: Nodes) -> None:
    node = await nodes.start(metrics_listen="127.0.0.1:0")
    peer = await nodes.peer(node)
    quotas = (("request_percentage", 1_000.0), ("controller_mutation_rate", 1.0))
    await peer.call(AlterClientQuotasRequest(entries=[entry([("client-id", "peer")], *quotas)]), 1)
    await peer.create("t", 4)
    found = await scrape(node)
    assert found.total("kafka_server_request_request_time", user="", client_id="peer") >= 0
    assert found.total("kafka_server_controllermutation_tokens", client_id="peer") > 6
    assert found.total("kafka_server_controllermutation_mutation_rate", client_id="peer") > 0


def test_labels_are_bounded_in_number_and_length() -> None:
    meter = QuotaMeter()
    meter.set_quota(QuotaKind.PRODUCE, (("client-id", None),), 1.0)
    for number in range(1_000):
        meter.produced("alice", f"{'x' * 300}{number}" if number % 2 else f"short-{number}", 1_000, 0)
    families = {each.name: each for each in QuotaSeries(Clock(), meter, None).collect() if each is not None}
    labels = [tuple(sample.labels.values()) for sample in families["kafka_server_produce_byte_rate"].samples]
    assert len(labels) == len(set(labels)) <= server_series.CLIENTS_MAX
    assert max(len(client_id) for _, client_id in labels) == LABEL_CHARACTERS_MAX
    assert families["kafka_server_produce_throttle_time"].samples
    assert not families["kafka_server_fetch_byte_rate"].samples
