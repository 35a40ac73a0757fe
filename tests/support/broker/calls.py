"""What a handler test without a node needs: a connection that nobody may use, and a Call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from barnabas.broker.api.access import FULL_ACCESS, Access
from barnabas.broker.api.call import Call, Computed, ConnectionLogin
from barnabas.protocol.registry import API, Api


class Connection:
    """Where a call comes from."""

    number = 7
    listener_name = "PLAINTEXT"
    client_port = 50_000
    login: ConnectionLogin | None = None
    software = ("", "")
    access: Access = FULL_ACCESS
    apis: Mapping[int, Api] = API

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_close(self, callback: Callable[[], None]) -> None:
        raise AssertionError("nobody waits for it")


def call_of(request: Any) -> Call[Any]:
    return Call(request, request.VERSIONS[1], request.API_KEY, "client", Connection(), "127.0.0.1")


def computed(answer: Any) -> Any:
    """What a handler has returned; a Computed answer is computed."""
    return answer.compute() if isinstance(answer, Computed) else answer
