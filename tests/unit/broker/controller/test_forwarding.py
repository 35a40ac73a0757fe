"""forward: the version of the request inside an envelope, while the nodes have different releases."""

from __future__ import annotations

from typing import Any, cast

import pytest

from barnabas.broker.api.access import FullAccess
from barnabas.broker.api.principal import ANONYMOUS
from barnabas.broker.authorization.envelopes import forwarded_header
from barnabas.broker.controller.channel import forward
from barnabas.broker.peers.peer import Peer
from barnabas.broker.scheduling.slices import Slices
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from barnabas.protocol.schema import Message, encode

REQUEST = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])


class OtherRelease:
    """The connection to a controller: the versions that it serves are known once the connection is open.

    Attributes:
        versions: of the requests that came.
    """

    purpose = "controller"

    def __init__(self, known: int, served: int) -> None:
        self._known = known  # while the connection is not open
        self._served = served
        self.versions: list[int] = []

    def version_of(self, request: type[Message]) -> int:
        return self._known if self.versions else 7

    def send(self, request: EnvelopeRequest, done: Any, *, timeout_ms: int, long: bool) -> None:
        header, _ = forwarded_header(request.request_data)
        self.versions.append(header.request_api_version)
        if header.request_api_version > self._served:
            done(EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
        else:
            answer = b"\0\0\0\0\0" + encode(CreateTopicsResponse(throttle_time_ms=3), header.request_api_version)
            done(EnvelopeResponse(response_data=answer))


@pytest.mark.parametrize(("known", "served", "sent"), [(5, 5, [7, 5]), (7, 7, [7]), (7, 5, [7]), (6, 5, [7, 6])])
def test_a_version_of_another_release_is_chosen_once_it_is_known(known: int, served: int, sent: list[int]) -> None:
    peer = OtherRelease(known, served)
    answers: list[Any] = []
    access = FullAccess(ANONYMOUS, "127.0.0.1")
    forward(cast(Slices, None), cast(Peer, peer), REQUEST, access, answers.append, 1_000)
    assert peer.versions == sent
    (answer,) = answers
    if sent[-1] <= served:
        assert answer.throttle_time_ms == 3
    else:
        assert isinstance(answer, BrokerError)
        assert answer.code is ErrorCode.UNSUPPORTED_VERSION
