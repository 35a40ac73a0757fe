"""Recorder: it notes the end of each connection once, whenever the connection was made and however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.testing.history.recorder import CONNECTIONS_KEPT, Recorder


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
