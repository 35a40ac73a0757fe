"""Forwards a client's request to the active controller in an Envelope, so that the controller authorizes the client (KIP-590)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from barnabas.broker.api.access import Access
from barnabas.broker.authorization.envelopes import SealedRequest, open_answer, seal
from barnabas.broker.controller.core.decision import AnyDone
from barnabas.broker.peers.peer import Peer
from barnabas.broker.peers.peer_error import PeerError
from barnabas.broker.quotas.mutations import MutatingClient
from barnabas.broker.scheduling.slices import Slices, WorkResult, advance
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.envelope import EnvelopeResponse
from barnabas.protocol.schema import Message
from barnabas.work import Steps

T = TypeVar("T")


def forward(
    slices: Slices,
    peer: Peer,
    request: Message,
    access: Access,
    done: AnyDone,
    timeout_ms: int,
    client: MutatingClient | None = None,
) -> None:
    """`client` names the mutation quota. `done` gets the answer, a BrokerError of the controller, or the peer's PeerError."""
    version = peer.version_of(type(request))
    client_id = f"controller-{peer.purpose}"
    if client is not None:
        client_id = client.client_id
        if not client.strict:
            version = min(version, client.version)

    def answered(answer: EnvelopeResponse | PeerError) -> None:
        if isinstance(answer, PeerError):
            done(answer)
        elif answer.error_code == ErrorCode.UNSUPPORTED_VERSION and peer.version_of(type(request)) < version:
            # The connection was not open when the version was chosen, and the controller's node has another release.
            forward(slices, peer, request, access, done, timeout_ms, client)
        else:
            _run(slices, open_answer(request, version, answer), done, done)

    def sealed(found: SealedRequest) -> None:
        peer.send(found.envelope, answered, timeout_ms=timeout_ms, long=True)

    _run(slices, seal(request, version, access, client_id), sealed, done)


def _run(slices: Slices, work: Steps[T], done: Callable[[T], None], refused: AnyDone) -> None:

    def failed(error: BaseException) -> None:
        if not isinstance(error, BrokerError):
            raise error
        refused(error.with_traceback(None))

    try:
        rest = advance(work)
    except BrokerError as error:
        refused(error.with_traceback(None))
        return
    if isinstance(rest, WorkResult):
        done(rest.result)
    else:
        slices.start(rest, done, failed)
