"""Recorder: it notes the end of each connection once, whenever the connection was made and however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.testing import Broker
from barnabas.testing.history.recorder import CONNECTIONS_KEPT, REQUESTS_KEPT, Recorder
from tests.support.oracle.wire import Wire

LARGE_BYTES = 100_000


class Connection:
    """A connection of a client."""

    client_id = "billing"

    def __init__(self, number: int) -> None:
        self.number = number
        self.on_end: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        self.on_end.append(callback)

    def end(self) -> None:
        for each in self.on_end:
            each()


def recording() -> tuple[Recorder, list[Any]]:
    events: list[Any] = []
    return Recorder(1, lambda name, value: events.append(value)), events


def test_a_connection_that_is_older_than_the_history_has_an_end() -> None:
    recorder, events = recording()
    recorder.set_level("last")
    connection = Connection(1)
    recorder.requests(connection)
    recorder.set_level("all")
    recorder.requests(connection)
    connection.end()
    assert [(each["kind"], each["connection"]) for each in events] == [("closed", 1)]


def test_many_connections_that_take_turns_are_noted_once_each() -> None:
    recorder, events = recording()
    recorder.set_level("all")
    connections = [Connection(number) for number in range(CONNECTIONS_KEPT + 1)]
    for _ in range(3):
        for each in connections:
            recorder.requests(each)
    assert {len(each.on_end) for each in connections} == {1}
    for each in connections:
        each.end()
    assert [each["connection"] for each in events] == list(range(len(connections)))


def test_large_requests_and_answers_are_kept_as_a_text() -> None:
    told: list[Recorder] = []

    async def keep(kafka: Broker) -> None:
        arguments = {"level": "last", "keep": told.append}
        await kafka.core().backend.command(1, "history_level", arguments)

    with Broker() as kafka, Wire(kafka.brokers[0].address) as wire:
        kafka.wait(keep(kafka))
        wire.find_coordinator("billing", 0)
        member = ""
        for _ in range(REQUESTS_KEPT):
            join = JoinGroupRequest(
                group_id="billing",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id=member,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="own", metadata=bytes(LARGE_BYTES))],
            )
            member = wire.call(join, 5).member_id
        kept = [entry for connection, ring in told[0].last.values() for entry in ring if entry[1] == 11]
        assert len(kept) == REQUESTS_KEPT
        assert {entry[2] for entry in kept} == {"billing"}
        assert {entry[3].text for entry in kept} == {"MEMBER_ID_REQUIRED", "ok"}
