"""The same requests about quotas of clients to Kafka and to Barnabas: the same answers, codes and words."""

from __future__ import annotations

import math
import socket
import time

import pytest

from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.quotas import QuotaAlteration
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.oracle.admin_requests import SETTLED_SECONDS_MAX, Observe
from tests.support.oracle.quota_requests import Part, alter_quotas, describe_quotas, entry
from tests.support.oracle.tools import tool
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts

pytestmark = pytest.mark.oracle

EXACT, DEFAULT, ANY = range(3)
DESCRIBES = "observe_now"  # may be asked again
ALICE: Part = ("user", "alice")
APP: Part = ("client-id", "app")
EVERYONE: Part = ("user", None)
EVERY_APP: Part = ("client-id", None)
ADDRESS: Part = ("ip", "10.1.2.3")
EVERY_ADDRESS: Part = ("ip", None)
PRODUCED, CONSUMED, SHARE = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
ENTITIES: list[list[Part]] = [
    [ALICE],
    [APP],
    [ALICE, APP],
    [EVERYONE],
    [EVERY_APP],
    [EVERYONE, EVERY_APP],
    [ALICE, EVERY_APP],
    [EVERYONE, APP],
    [("user", "o'Brien=ü%,*")],
]
COMPONENTS: list[list[tuple[str, int, str | None]]] = [
    [],
    *(
        [(kind, how, match)]
        for kind in ("user", "client-id", "ip")
        for how, match in ((0, "alice"), (1, None), (2, None))
    ),
    [("user", EXACT, "alice"), ("client-id", EXACT, "app")],
    [("user", EXACT, "alice"), ("client-id", DEFAULT, None)],
    [("user", ANY, None), ("client-id", ANY, None)],
    [("user", DEFAULT, None), ("client-id", ANY, None)],
    [("user", EXACT, "")],
    [("ip", EXACT, "10.1.2.3")],
]
WRONG_COMPONENTS: list[list[tuple[str, int, str | None]]] = [
    [("", ANY, None)],
    [("group", ANY, None)],
    [("user", 3, None)],
    [("user", -1, None)],
    [("user", EXACT, None)],
    [("user", DEFAULT, "x")],
    [("user", ANY, "x")],
    [("user", ANY, None), ("user", DEFAULT, None)],
    [("user", ANY, None), ("ip", ANY, None)],
    [("ip", ANY, None), ("client-id", EXACT, "x")],
    [("group", ANY, None), ("", 9, None)],
]
WRONG_ENTITIES: list[list[Part]] = [
    [],
    [("user", "")],
    [("client-id", "")],
    [("ip", "")],
    [("group", "x")],
    [("", "x")],
    [ALICE, ("user", "bob")],
    [ALICE, ALICE],
    [ALICE, ADDRESS],
    [APP, EVERY_ADDRESS],
    [("ip", "no such host!")],
    [("ip", "10.1.2.300")],
    [("ip", "10.1.2.3/24")],
]
VALUES = [1.0, 0.0, -1.0, 0.5, 1e-7, 2.0**31 - 1, 2.0**31, 2.0**40, 2.0**63, 2.0**64, math.inf, math.nan]
SCRIPTS: dict[str, list[Observe]] = {
    "entities": [
        alter_quotas(*(entry(parts, (PRODUCED, 1_000.0 + number)) for number, parts in enumerate(ENTITIES))),
        alter_quotas(entry([ADDRESS], (CONNECTIONS, 5.0)), entry([EVERY_ADDRESS], (CONNECTIONS, 6.0)), version=0),
        *(describe_quotas(*components, strict=strict) for components in COMPONENTS for strict in (False, True)),
        describe_quotas(version=0),
        *(describe_quotas(*components) for components in WRONG_COMPONENTS),
    ],
    "wrong entities": [
        *(alter_quotas(entry(parts, (PRODUCED, 1.0))) for parts in WRONG_ENTITIES),
        *(alter_quotas(entry(parts, (CONNECTIONS, 1.0))) for parts in WRONG_ENTITIES),
        alter_quotas(),
        alter_quotas(entry([APP])),
        alter_quotas(
            entry([("ip", "::2")], (CONNECTIONS, 1.0)), entry([("ip", "0:0:0:0:0:0:0:2")], (CONNECTIONS, 2.0))
        ),
        describe_quotas(("ip", ANY, None)),
        alter_quotas(*(entry([("ip", name)], (CONNECTIONS, None)) for name in ("::2", "0:0:0:0:0:0:0:2"))),
        alter_quotas(entry([("user", "bob")], (PRODUCED, None))),
    ],
    "values": [
        *(
            alter_quotas(entry([ALICE], (key, value)), validate_only=True)
            for key in (PRODUCED, CONSUMED, SHARE, MUTATIONS)
            for value in VALUES
        ),
        *(alter_quotas(entry([ADDRESS], (CONNECTIONS, value)), validate_only=True) for value in VALUES),
        *(alter_quotas(entry([ALICE], (key, 1.0))) for key in (CONNECTIONS, "nope", "", "SCRAM-SHA-256")),
        *(alter_quotas(entry([ADDRESS], (key, 1.0))) for key in (PRODUCED, MUTATIONS, "nope")),
        alter_quotas(entry([ALICE], ("nope", None))),
        alter_quotas(entry([ALICE], (PRODUCED, 1.0), ("nope", 1.0), (CONSUMED, 2.0))),
        describe_quotas(("user", ANY, None)),
    ],
    "several": [
        alter_quotas(entry([ALICE], (PRODUCED, 10.0), (CONSUMED, 20.0), (SHARE, 30.5), (MUTATIONS, 0.1))),
        describe_quotas(("user", EXACT, "alice"), strict=True),
        alter_quotas(entry([ALICE], (PRODUCED, 11.0), (PRODUCED, 12.0))),
        alter_quotas(entry([ALICE], (PRODUCED, 11.0)), entry([ALICE], (CONSUMED, 12.0))),
        alter_quotas(entry([ALICE, APP], (PRODUCED, 11.0)), entry([APP, ALICE], (CONSUMED, 12.0))),
        alter_quotas(entry([ALICE], ("nope", 11.0)), entry([ALICE], (CONSUMED, 13.0)), entry([APP], (CONSUMED, 14.0))),
        describe_quotas(("user", ANY, None)),
        describe_quotas(("client-id", ANY, None)),
        alter_quotas(entry([ALICE], (PRODUCED, 99.0)), validate_only=True),
        alter_quotas(entry([ALICE], (PRODUCED, None), (CONSUMED, None), ("nope", None))),
        describe_quotas(("user", EXACT, "alice")),
        alter_quotas(entry([ALICE], (SHARE, None), (MUTATIONS, None))),
        alter_quotas(entry([("user", "nobody")], (SHARE, None))),
        alter_quotas(entry([ALICE, APP], (PRODUCED, None)), entry([APP], (CONSUMED, None))),
    ],
}
TOPIC = "quotas.load"
NEARLY_NOTHING = 0.000_1  # of request_percentage
RATE = 110_000.0  # two of the requests in ten seconds are below it
TURNS_MAX = 5
WRITTEN_MS = 1_700_000_000_000
AFTERWARDS = alter_quotas(
    *(entry(parts, *((key, None) for key in (PRODUCED, CONSUMED, SHARE, MUTATIONS))) for parts in ENTITIES),
    entry([ADDRESS], (CONNECTIONS, None)),
    entry([EVERY_ADDRESS], (CONNECTIONS, None)),
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_answers_about_quotas_are_those_of_kafka(kafka: str, barnabas: str, script: str) -> None:
    with Wire(kafka) as theirs, Wire(barnabas) as ours:
        for step, observe in enumerate([*SCRIPTS[script], AFTERWARDS, describe_quotas()]):
            expected, answer = observe(theirs), observe(ours)
            deadline = time.monotonic() + SETTLED_SECONDS_MAX
            # Kafka answers a change before its broker has replayed it.
            while answer != expected and observe.__name__ == DESCRIBES and time.monotonic() < deadline:
                time.sleep(0.05)
                expected = observe(theirs)
            assert answer == expected, f"step {step} of {script}"


def produced(size_bytes: int, acks: int = 1, topic: str = TOPIC) -> ProduceRequest:
    batch = build_batch([NewRecord(None, b"x" * size_bytes, WRITTEN_MS)])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])


def fetched(offset: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=400_000)
    topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=400_000, session_epoch=-1, topics=topics)


def await_throttled(address: str, client: str) -> None:
    """Waits until a client is throttled whose request_percentage is nearly nothing: quotas apply some time after the answer."""
    for _ in attempts(f"{client} is throttled"):
        with Wire(address, client) as wire:
            if any(wire.call(MetadataRequest(topics=[]), 5).throttle_time_ms for _ in range(2)):
                break


def throttle_times(address: str) -> dict[str, int]:
    """The throttle time of the third of three requests of 500 kB by clients that may use 1.1 MB in ten seconds."""
    found = {}
    with Wire(address) as administrator:
        administrator.create_topic(TOPIC)
        clients = {key: f"{key}-{time.time_ns()}" for key in (PRODUCED, CONSUMED, MUTATIONS, SHARE)}
        entities = [
            entry([("client-id", clients[SHARE])], (SHARE, NEARLY_NOTHING)),
            entry([("client-id", clients[PRODUCED])], (PRODUCED, RATE)),
            entry([("client-id", clients[CONSUMED])], (CONSUMED, RATE)),
            entry([("client-id", clients[MUTATIONS])], (MUTATIONS, 1.0)),
        ]
        alter_quotas(*entities)(administrator)
        await_throttled(address, clients[SHARE])
        with Wire(address, clients[PRODUCED]) as wire:
            found["produce"] = [wire.call(produced(500_000), 9).throttle_time_ms for _ in range(3)][2]
        with Wire(address, clients[CONSUMED]) as wire:
            answers = [wire.call(fetched(offset), 11) for offset in range(3)]
            assert [bool(answer.responses) for answer in answers] == [True, True, False]
            found["fetch"] = answers[2].throttle_time_ms
        with Wire(address, clients[MUTATIONS]) as wire:
            names = [f"quotas-{number}-{time.time_ns()}" for number in range(3)]
            topics = [CreatableTopic(name=name, num_partitions=8, replication_factor=1) for name in names]
            created = wire.call(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
            results = [(each.error_code, each.error_message) for each in created.topics]
            assert results == [(0, None), (0, None), (89, None)]
            found["create"] = created.throttle_time_ms
        alter_quotas(*(entry(list(_parts(each)), *((op.key, None) for op in each.ops)) for each in entities))(
            administrator
        )
    return found


def _parts(each: QuotaAlteration) -> list[Part]:
    return [(part.entity_type, part.entity_name) for part in each.entity]


def test_throttle_times_are_those_of_kafka(kafka: str, barnabas: str) -> None:
    """The three requests are sent again if a busy machine took longer for them than a sample of the rate lasts."""
    for _ in range(TURNS_MAX):
        theirs, ours = throttle_times(kafka), throttle_times(barnabas)
        assert ours.keys() == theirs.keys()
        if all(abs(ours[name] - expected) <= 0.15 * expected > 150 for name, expected in theirs.items()):
            return
    raise AssertionError((ours, theirs))


LEFT = 120  # requests of a producer with acks=0 that leaves
LEFT_RATE = 100_000.0  # they exceed it


def written_after_leaving(address: str, *, closes: bool, throttled: bool) -> int:
    """How many requests with acks=0 are written of a client that closes its connection, or its own side of it."""
    topic, client = (f"quotas.left-{time.time_ns()}" for _ in range(2))
    with Wire(address) as administrator:
        administrator.create_topic(topic)
        if throttled:
            probe = entry([("client-id", client + "-probe")], (SHARE, NEARLY_NOTHING))
            alter_quotas(probe, entry([("client-id", client)], (PRODUCED, LEFT_RATE)))(administrator)
            await_throttled(address, client + "-probe")
        with Wire(address, client) as wire:
            for _ in range(LEFT):
                wire.send(produced(9_000, acks=0, topic=topic), 9)
            if not closes:
                wire.socket.shutdown(socket.SHUT_WR)
                while wire.socket.recv(1):
                    pass
        asked = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        deadline = time.monotonic() + 120
        while True:
            (found,) = administrator.call(request, 5).topics[0].partitions
            if found.offset >= LEFT or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        alter_quotas(entry([("client-id", client)], (PRODUCED, None)))(administrator)
    assert isinstance(found.offset, int)
    return found.offset


@pytest.mark.parametrize("throttled", [False, True], ids=["free", "throttled"])
@pytest.mark.parametrize("closes", [True, False], ids=["closes", "closes its own side"])
def test_requests_of_a_producer_that_has_left_are_written(
    kafka: str, barnabas: str, closes: bool, throttled: bool
) -> None:
    for address in (kafka, barnabas):
        assert written_after_leaving(address, closes=closes, throttled=throttled) == LEFT


def kafka_configs(address: str) -> list[list[str]]:
    """What kafka-configs prints about quotas, line by line."""

    def run(*arguments: str) -> list[str]:
        output = tool("kafka.admin.ConfigCommand", "--bootstrap-server", address, *arguments)
        return sorted(" ".join(line.split()) for line in output.splitlines() if line.strip())

    user = ("--entity-type", "users", "--entity-name", "tools")
    ip = ("--entity-type", "ips", "--entity-name", "10.9.8.7")
    return [
        run(*user, "--alter", "--add-config", "producer_byte_rate=1024,request_percentage=12.5"),
        run(*ip, "--alter", "--add-config", "connection_creation_rate=7"),
        *(run(*entity, "--describe") for entity in (user, ip)),
        run(*user, "--alter", "--delete-config", "producer_byte_rate,request_percentage"),
    ]


NOT_OF_TOOLS = alter_quotas(entry([("ip", "10.9.8.7")], (CONNECTIONS, None)))


def test_kafka_configs_prints_the_same(kafka: str, barnabas: str) -> None:
    assert kafka_configs(barnabas) == kafka_configs(kafka)
    for address in (barnabas, kafka):
        with Wire(address) as wire:
            NOT_OF_TOOLS(wire)
