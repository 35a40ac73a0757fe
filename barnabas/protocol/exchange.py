"""The client side of a connection, without I/O: the requests that wait for answers, and the versions that both sides support.

Driven by: on_connecting, on_connected, send, on_frame, on_lost, on_timer.
Emits: buffers to write; `done` of each request, exactly once, with its decoded response or with the error of `on_lost`.

Invariants: states change by VALID_PREVIOUS. The first request is ApiVersions (KIP-511: with the highest known version, then with one that
the broker supports; KIP-35), and other requests are accepted only when READY. Answers arrive in request order. An overdue answer closes
the connection, as in Kafka, because later answers would be late, too. An abandoned request keeps its place, and its `done` ignores
the answer.

Shells: `client/transport.py` and `broker/peers.py`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from barnabas.errors import BarnabasError, ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.registry import API, request_header_version, response_header_version
from barnabas.protocol.schema import codec, decode, decode_in_slices, encode, encode_in_slices, encode_parts
from barnabas.protocol.wire import Array
from barnabas.work import Steps

__all__ = [
    "VALID_PREVIOUS",
    "VERSION_MAX",
    "EncodedRequest",
    "Exchange",
    "ExchangeState",
    "Features",
    "NoCommonVersion",
    "NotReady",
    "OnResponse",
    "is_long",
]

SOFTWARE_NAME = "barnabas"
SOFTWARE_VERSION = "0.1.0"
API_VERSIONS_KEY = 18
VERSION_MAX = 0x7FFF
LONG_ELEMENTS: Final = 256  # of arrays: a request that has more is encoded in slices
LONG_BYTES: Final = 16 * 1024  # of an answer that is decoded in slices
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID_AT: Final = 8  # in a request frame: after length, API key and version


class NoCommonVersion(BarnabasError):
    """Both sides support no common version of a request. The text names both ranges."""


class NotReady(BarnabasError):
    """The connection accepts no requests now."""


class ExchangeState(Enum):
    """States of the connection."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    READY = "ready"
    CLOSED = "closed"


_S = ExchangeState

VALID_PREVIOUS: dict[ExchangeState, frozenset[ExchangeState]] = {
    _S.DISCONNECTED: frozenset({_S.CONNECTING, _S.NEGOTIATING, _S.READY}),
    _S.CONNECTING: frozenset({_S.DISCONNECTED}),
    _S.NEGOTIATING: frozenset({_S.CONNECTING}),
    _S.READY: frozenset({_S.NEGOTIATING}),
    _S.CLOSED: frozenset(_S) - {_S.CLOSED},
}

OnResponse = Callable[[Any], None]  # called once with the response, or with the error of on_lost


class Features(NamedTuple):
    """The cluster's finalized features that this broker knows; the epoch is −1 if it knows none."""

    epoch: int
    levels: dict[str, int]


class _Form:
    """Values shared by all requests of one (class, version) on a connection, created by the first of them."""

    __slots__ = ("api_key", "decode", "head", "tagged", "version")

    def __init__(self, request: Any, version: int, client_id: str) -> None:
        api_key = request.API_KEY
        header = RequestHeader(
            request_api_key=api_key, request_api_version=version, correlation_id=0, client_id=client_id
        )
        self.api_key = api_key
        self.version = version
        self.head = bytes(_LENGTH.size) + encode(header, request_header_version(api_key, version))
        self.decode = codec(API[api_key].response, version).decode
        self.tagged = response_header_version(api_key, version) >= 1


class EncodedRequest(NamedTuple):
    """A request that was encoded in slices, for the connection as it was then."""

    form: _Form
    parts: list[Buffer]


class _Waiting(NamedTuple):
    correlation_id: int
    form: _Form
    deadline_ms: int
    done: OnResponse
    in_slices: bool


def pick_version(
    request: type[Any], offered: dict[int, tuple[int, int]], version_max: int, version_min: int = 0
) -> int:
    """The highest version that both sides support and the caller allows; `version_min` if the broker offers only lower ones.

    A broker may serve versions that it does not offer (Kafka's unstable ones). Otherwise it closes the connection.

    Raises:
        NoCommonVersion: there is none.
    """
    low, high = request.VERSIONS
    theirs = offered.get(request.API_KEY)
    if theirs is None:
        raise NoCommonVersion(f"the broker does not serve {request.__name__}")
    version: int = max(min(high, theirs[1], version_max), version_min)
    if version < low or version < theirs[0]:
        raise NoCommonVersion(
            f"{request.__name__}: we speak {low}-{min(high, version_max)}, the broker {theirs[0]}-{theirs[1]}"
        )
    return version


def is_long(request: Any) -> bool:
    """Whether a request takes more than about a tenth of a millisecond to encode."""
    return _elements(request, LONG_ELEMENTS) > LONG_ELEMENTS


def _elements(struct: Any, enough: int) -> int:
    """The number of array elements; more than `enough` if it exceeds `enough`."""
    count = 0
    for declared in struct.FIELDS:
        if not isinstance(declared.wire, Array):
            continue
        elements = getattr(struct, declared.name) or ()
        count += len(elements)
        for element in elements if count <= enough else ():
            if not hasattr(element, "FIELDS"):
                break
            count += _elements(element, enough - count)
            if count > enough:
                break
    return count


class Exchange:
    """The requests and versions of one connection.

    Args:
        client_id: sent in every header.
        request_timeout_ms: largest time of an answer, unless the caller gives another one.
        deliver: calls a request's `done` with its result.
        decode_later: decodes a long answer to a request that was sent with `in_slices`, and calls its `done`.
    """

    def __init__(
        self,
        client_id: str,
        *,
        request_timeout_ms: int,
        deliver: Callable[[OnResponse, Any], None] | None = None,
        decode_later: Callable[[Steps[Any], OnResponse], None] | None = None,
    ) -> None:
        self.client_id = client_id
        self._deliver = _deliver if deliver is None else deliver
        self._decode_later = decode_later
        self.request_timeout_ms = request_timeout_ms
        self.state = ExchangeState.DISCONNECTED
        self.versions: dict[int, tuple[int, int]] = {}
        self.features = Features(-1, {})
        self._forms: dict[tuple[type[Any], int, int], _Form] = {}  # by class and the caller's highest version
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._earliest_ms: int | None = None
        self.versions_answer: ApiVersionsResponse | None = None  # until the shell passes it to on_versions

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their answer."""
        return len(self._waiting)

    def on_connecting(self) -> None:
        self._transition(ExchangeState.CONNECTING)

    def on_connected(self, now_ms: int) -> list[Buffer]:
        """Handles an open socket. Returns the first request to write."""
        self._transition(ExchangeState.NEGOTIATING)
        return self._ask_versions(ApiVersionsRequest.VERSIONS[1], now_ms)

    def send(
        self,
        request: Any,
        done: OnResponse,
        now_ms: int,
        *,
        timeout_ms: int | None = None,
        version_max: int = VERSION_MAX,
        version_min: int = 0,
        answered: bool = True,
        in_slices: bool = False,
    ) -> list[Buffer]:
        """Returns the bytes of a request. `done` is called once, with the response or with the error of `on_lost`; never if not
        `answered`. The version is that of `pick_version`.

        Args:
            in_slices: whether a long answer is given to `decode_later`.

        Raises:
            NoCommonVersion, NotReady: the request is not sent.
        """
        form = self._form(request, version_max, version_min)
        parts = encode_parts(request, form.version, bytearray(form.head))
        deadline_ms = now_ms + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        return self._send(parts, form, deadline_ms, done if answered else None, in_slices)

    def encode_in_slices(self, request: Any, version_max: int) -> Steps[EncodedRequest]:
        """Encodes a long request for `send_encoded`. Raises NoCommonVersion, NotReady."""
        form = self._form(request, version_max, 0)
        parts = yield from encode_in_slices(request, form.version, bytearray(form.head))
        return EncodedRequest(form, parts)

    def send_encoded(self, encoded: EncodedRequest, done: OnResponse, deadline_ms: int) -> list[Buffer]:
        """As `send` with `in_slices`. Raises NotReady if the connection was lost since the request was encoded."""
        if self.state is not ExchangeState.READY or encoded.form not in self._forms.values():
            raise NotReady("the connection was lost while the request was encoded")
        return self._send(encoded.parts, encoded.form, deadline_ms, done, True)

    def _form(self, request: Any, version_max: int, version_min: int) -> _Form:
        if self.state is not ExchangeState.READY:
            raise NotReady(f"the connection is {self.state.value}")
        form = self._forms.get((request.__class__, version_max, version_min))
        if form is None:
            version = pick_version(request.__class__, self.versions, version_max, version_min)
            form = self._forms[request.__class__, version_max, version_min] = _Form(request, version, self.client_id)
        return form

    def on_frame(self, frame: memoryview) -> None:
        """Handles one whole frame.

        Raises:
            RemoteProtocolError: the frame does not answer the oldest request. The connection must be closed.
        """
        if not self._waiting:
            raise RemoteProtocolError("an answer came to a request that was never sent")
        waiting = self._waiting[0]
        form = waiting.form
        correlation_id = int.from_bytes(frame[:4], "big")
        if correlation_id != waiting.correlation_id:
            raise RemoteProtocolError(f"answer {correlation_id} came where {waiting.correlation_id} was due")
        position = _skip_tags(frame, 4) if form.tagged else 4
        response: Any = None
        later: Steps[Any] | None = None
        if waiting.in_slices and self._decode_later is not None and len(frame) > LONG_BYTES:
            later = decode_in_slices(API[form.api_key].response, bytes(frame), form.version, position)
        elif form.api_key == API_VERSIONS_KEY and int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: a broker that cannot read the request answers with version 0 and its range
            response = decode(ApiVersionsResponse, frame, 0, position)
        else:
            response, _ = form.decode(frame, position)
        self._waiting.popleft()
        if waiting.deadline_ms == self._earliest_ms:
            self._earliest_ms = min((w.deadline_ms for w in self._waiting), default=None)
        if later is not None and self._decode_later is not None:
            self._decode_later(later, waiting.done)
        else:
            self._deliver(waiting.done, response)

    def on_versions(self, response: ApiVersionsResponse, now_ms: int) -> list[Buffer]:
        """Handles the answer to ApiVersions. Returns the next request to write, nothing when READY.

        Raises:
            RemoteProtocolError: an error answer after which the exchange cannot continue.
        """
        code = response.error_code
        if code == ErrorCode.UNSUPPORTED_VERSION:
            theirs = next((k for k in response.api_keys if k.api_key == API_VERSIONS_KEY), None)
            best = min(theirs.max_version, ApiVersionsRequest.VERSIONS[1]) if theirs is not None else 0
            return self._ask_versions(best, now_ms)
        if code != ErrorCode.NONE:
            raise RemoteProtocolError(f"ApiVersions was answered with error {code}")
        self.versions = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
        self._forms.clear()
        self.features = Features(
            response.finalized_features_epoch,
            {f.name: f.max_version_level for f in response.finalized_features},
        )
        self._transition(ExchangeState.READY)
        return []

    def timer_at(self) -> int | None:
        """The earliest deadline of the waiting requests, in monotonic ms."""
        return self._earliest_ms

    def on_timer(self, now_ms: int) -> str | None:
        """The name of an API whose answer is overdue; then the connection must be closed. None if no answer is overdue."""
        if self._earliest_ms is not None and self._earliest_ms <= now_ms:
            waiting = min(self._waiting, key=lambda w: w.deadline_ms)
            return API[waiting.form.api_key].name
        return None

    def on_lost(self, error: Any) -> None:
        """Handles the loss of the connection: every waiting request fails with `error`, oldest first."""
        if self.state is not ExchangeState.CLOSED:
            self._transition(ExchangeState.DISCONNECTED)
        waiting, self._waiting = self._waiting, deque()
        self._earliest_ms = None
        for entry in waiting:
            self._deliver(entry.done, error)

    def close(self) -> None:
        """Accepts no more requests. Waiting requests still get `on_lost`."""
        if self.state is not ExchangeState.CLOSED:
            self._transition(ExchangeState.CLOSED)

    def _ask_versions(self, version: int, now_ms: int) -> list[Buffer]:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        form = _Form(request, version, self.client_id)
        parts = encode_parts(request, version, bytearray(form.head))
        return self._send(parts, form, now_ms + self.request_timeout_ms, self._versions_done, False)

    def _versions_done(self, answer: Any) -> None:
        if isinstance(answer, ApiVersionsResponse):
            self.versions_answer = answer

    def _send(
        self, parts: list[Buffer], form: _Form, deadline_ms: int, done: OnResponse | None, in_slices: bool
    ) -> list[Buffer]:
        """Completes an encoded request; None as `done`: it has no answer."""
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        first = parts[0]
        if not isinstance(first, bytearray):
            raise InvariantViolated("the first part of an encoded request must be its own buffer")
        _LENGTH.pack_into(first, 0, sum(map(len, parts)) - _LENGTH.size)
        _LENGTH.pack_into(first, _CORRELATION_ID_AT, correlation_id)
        if done is not None:
            self._waiting.append(_Waiting(correlation_id, form, deadline_ms, done, in_slices))
            if self._earliest_ms is None or deadline_ms < self._earliest_ms:
                self._earliest_ms = deadline_ms
        return parts

    def _transition(self, state: ExchangeState) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"a connection cannot become {state.value} from {self.state.value}")
        self.state = state


def _deliver(done: OnResponse, outcome: Any) -> None:
    done(outcome)


def _skip_tags(frame: memoryview, position: int) -> int:
    """The position after the tagged fields of a response header."""
    if position < len(frame) and not frame[position]:
        return position + 1
    count, position = _unsigned(frame, position)
    for _ in range(count):
        _, position = _unsigned(frame, position)
        size, position = _unsigned(frame, position)
        position += size
        if position > len(frame):
            raise RemoteProtocolError("a tag of a response header ends behind its frame")
    return position


def _unsigned(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(frame) and shift < 35:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise RemoteProtocolError("a response header is cut off")
