"""Client side of a connection, without I/O: requests in flight and negotiated versions (KIP-35, KIP-511, KIP-368)."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.errors import BarnabasError, ErrorCode, InvariantViolated, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.registry import API, request_header_version, response_header_version
from barnabas.protocol.sasl import SaslClient, SaslFailed
from barnabas.protocol.schema import codec, decode, encode, encode_parts
from barnabas.protocol.wire import Array
from barnabas.work import LONG_BYTES, Steps, in_worker

if TYPE_CHECKING:
    from barnabas.protocol.login import Login

SOFTWARE_NAME = "barnabas"
SOFTWARE_VERSION = "0.1.0"
API_VERSIONS_KEY = 18
SASL_HANDSHAKE_KEY = 17
VERSION_MAX = 0x7FFF
LONG_ELEMENTS: Final = 1_000  # of arrays: a request that has more is encoded in the worker thread: 1 ms
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID_AT: Final = 8  # in a request frame: after length, API key and version
# A session is renewed after this share of its lifetime, or up to a tenth later, as in Kafka.
_SESSION_SHARE_MIN: Final = 0.85
_SESSION_SHARE_SPAN: Final = 0.1
# no request leaves later, so that it arrives before the end
_SESSION_SHARE_MAX: Final = _SESSION_SHARE_MIN + _SESSION_SHARE_SPAN
_RENEWAL_MS_MIN: Final = 1_050  # Kafka's brokers reject another authentication within a second


class NoCommonVersion(BarnabasError):
    """No common version of a request. The text names both ranges."""


class NotReady(BarnabasError):
    """The connection accepts no requests now."""


class ExchangeState(Enum):
    """States of the connection, changed by VALID_PREVIOUS."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


_S = ExchangeState

VALID_PREVIOUS: dict[ExchangeState, frozenset[ExchangeState]] = {
    _S.DISCONNECTED: frozenset({_S.CONNECTING, _S.NEGOTIATING, _S.AUTHENTICATING, _S.READY}),
    _S.CONNECTING: frozenset({_S.DISCONNECTED}),
    _S.NEGOTIATING: frozenset({_S.CONNECTING}),
    _S.AUTHENTICATING: frozenset({_S.NEGOTIATING}),
    _S.READY: frozenset({_S.NEGOTIATING, _S.AUTHENTICATING}),
    _S.CLOSED: frozenset(_S) - {_S.CLOSED},
}

OnResponse = Callable[[Any], None]  # called once with the response, or with the error of on_lost


class Features(NamedTuple):
    """The cluster's finalized features that this broker knows; epoch −1 without any."""

    epoch: int
    levels: dict[str, int]


class _Form:
    """Values shared by all requests of one (class, version) on a connection."""

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
    """A request encoded in slices, for one connection."""

    form: _Form
    parts: list[Buffer]


class _Held(NamedTuple):
    """A request that waits for the end of a re-authentication."""

    parts: list[Buffer]
    form: _Form
    deadline_ms: int
    done: OnResponse | None
    long: bool


class _Waiting(NamedTuple):
    correlation_id: int
    form: _Form
    deadline_ms: int
    done: OnResponse
    long: bool


def pick_version(
    request: type[Any], offered: dict[int, tuple[int, int]], version_max: int, version_min: int = 0
) -> int:
    """The highest version of both sides; `version_min` if the broker offers only lower ones. Raises NoCommonVersion."""
    low, high = request.VERSIONS
    theirs = offered.get(request.API_KEY)
    if theirs is None:
        raise NoCommonVersion(f"the broker does not serve {request.__name__}")
    # A broker may serve versions that it does not offer (Kafka's unstable ones).
    version: int = max(min(high, theirs[1], version_max), version_min)
    if version < low or version < theirs[0]:
        raise NoCommonVersion(
            f"{request.__name__}: we speak {low}-{min(high, version_max)}, the broker {theirs[0]}-{theirs[1]}"
        )
    return version


def is_long(request: Any) -> bool:
    """Whether a request takes more than about a millisecond to encode."""
    return _elements(request, LONG_ELEMENTS) > LONG_ELEMENTS


def _elements(struct: Any, enough: int) -> int:
    """Number of array elements; any number above `enough` if it exceeds `enough`."""
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
    """Requests and versions of one connection.

    The first request is ApiVersions, then the connection authenticates. While a session is renewed, or about to end,
    other requests are held: the broker would close. An abandoned request keeps its place; its `done` ignores the
    response.

    Args:
        deliver: calls a request's `done` with its result.
        decode_later: decodes a long answer to a request that was sent with `long`, and calls its `done`.
        sasl: makes the conversation of each authentication; None: the connection does not authenticate.
        jitter: from 0 to 1, spreads the renewals of the sessions of many connections.

    Attributes:
        own_answer: the response to a request of the exchange itself, until `on_own_answer`.
        reauthenticate_at_ms: when `reauthenticate` is due, in monotonic ms; None: never.
    """

    def __init__(
        self,
        client_id: str,
        *,
        request_timeout_ms: int,
        deliver: Callable[[OnResponse, Any], None] | None = None,
        decode_later: Callable[[Steps[Any], OnResponse], None] | None = None,
        sasl: Callable[[], SaslClient] | None = None,
        jitter: float = 0.5,
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
        self.own_answer: Any = None
        self.reauthenticate_at_ms: int | None = None
        self._sasl = sasl
        self._session_share = _SESSION_SHARE_MIN + _SESSION_SHARE_SPAN * jitter
        self._login: Login | None = None  # while it authenticates
        self._login_began_ms = 0
        self._held: deque[_Held] = deque()
        self._held_from_ms: int | None = None  # requests are held from then on, until the session is renewed

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._held)

    def on_connecting(self) -> None:
        self._transition(ExchangeState.CONNECTING)

    def on_connected(self, now_ms: int) -> list[Buffer]:
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
        long: bool = False,
    ) -> list[Buffer]:
        """Returns the bytes of a request in the version of `pick_version`.

        Args:
            long: whether a long answer is given to `decode_later`.

        Raises:
            NoCommonVersion, NotReady: the request is not sent.
        """
        form = self._form(request, version_max, version_min)
        parts = encode_parts(request, form.version, bytearray(form.head))
        deadline_ms = now_ms + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        return self._send(parts, form, deadline_ms, done if answered else None, long, now_ms)

    def encode_long(self, request: Any, version_max: int) -> Steps[EncodedRequest]:
        """Encodes a long request for `send_encoded`. Raises NoCommonVersion, NotReady."""
        form = self._form(request, version_max, 0)
        parts = yield from in_worker(partial(encode_parts, request, form.version, bytearray(form.head)))
        return EncodedRequest(form, parts)

    def send_encoded(self, encoded: EncodedRequest, done: OnResponse, now_ms: int, deadline_ms: int) -> list[Buffer]:
        """As `send` with `long`. Raises NotReady if the connection was lost since the request was encoded."""
        if self.state is not ExchangeState.READY or encoded.form not in self._forms.values():
            raise NotReady("the connection was lost while the request was encoded")
        return self._send(encoded.parts, encoded.form, deadline_ms, done, True, now_ms)

    def version_of(self, request: type[Any]) -> int:
        """The version for a request now; the highest known one if the connection is not READY or serves none."""
        high: int = request.VERSIONS[1]
        if self.state is not ExchangeState.READY:
            return high
        try:
            return pick_version(request, self.versions, VERSION_MAX)
        except NoCommonVersion:
            return high

    def _form(self, request: Any, version_max: int, version_min: int) -> _Form:
        if self.state is not ExchangeState.READY:
            raise NotReady(f"the connection is {self.state.value}")
        form = self._forms.get((request.__class__, version_max, version_min))
        if form is None:
            version = pick_version(request.__class__, self.versions, version_max, version_min)
            form = self._forms[request.__class__, version_max, version_min] = _Form(request, version, self.client_id)
        return form

    def on_frame(self, frame: memoryview) -> None:
        """Handles one frame. Raises RemoteProtocolError if it does not answer the oldest request; then close."""
        if not self._waiting:
            raise RemoteProtocolError("an answer came to a request that was never sent")
        waiting = self._waiting[0]
        form = waiting.form
        correlation_id = int.from_bytes(frame[:4], "big")
        if correlation_id != waiting.correlation_id:
            raise RemoteProtocolError(f"answer {correlation_id} came where {waiting.correlation_id} was due")
        position = _skip_header_tags(frame, 4) if form.tagged else 4
        response: Any = None
        later: Steps[Any] | None = None
        if waiting.long and self._decode_later is not None and len(frame) > LONG_BYTES:
            later = in_worker(partial(decode, API[form.api_key].response, bytes(frame), form.version, position))
        elif form.api_key == API_VERSIONS_KEY and int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: a broker that cannot read the request answers with version 0 and its range
            response = decode(ApiVersionsResponse, frame, 0, position)
        else:
            response, _ = form.decode(frame, position)
        self._waiting.popleft()
        if waiting.deadline_ms == self._earliest_ms:
            unanswered = self._unanswered() if self._held else self._waiting
            self._earliest_ms = min((w.deadline_ms for w in unanswered), default=None)
        if later is not None and self._decode_later is not None:
            self._decode_later(later, waiting.done)
        else:
            self._deliver(waiting.done, response)

    def own_work(self) -> Callable[[], None] | None:
        """Slow computation of `on_own_answer`, for a thread to run first; None if it is quick."""
        return None if self._login is None else self._login.work(self.own_answer)

    def on_own_answer(self, now_ms: int) -> list[Buffer]:
        """Handles `own_answer`: returns what to write. Raises RemoteProtocolError or SaslFailed: then close."""
        answer, self.own_answer = self.own_answer, None
        if self._login is None:
            return self._on_versions(answer, now_ms)
        message = self._login.next(answer)
        if message is not None:
            return self._send_own(message, now_ms, now_ms + self.request_timeout_ms)
        lifetime_ms = self._login.session_lifetime_ms
        self._login = None
        # From before the request, so that the broker's session certainly ends later.
        renewal_ms = self._login_began_ms + int(lifetime_ms * self._session_share)
        self.reauthenticate_at_ms = max(renewal_ms, now_ms + _RENEWAL_MS_MIN) if lifetime_ms else None
        self._held_from_ms = self._login_began_ms + int(lifetime_ms * _SESSION_SHARE_MAX) if lifetime_ms else None
        if self.state is not ExchangeState.READY:
            self._transition(ExchangeState.READY)
            return []
        held, self._held = self._held, deque()
        return [part for request in held for part in self._write(*request)]

    def reauthenticate(self, now_ms: int) -> list[Buffer]:
        """Renews the session of a READY connection. Returns what to write. Raises SaslFailed as `on_own_answer`."""
        if self.state is not ExchangeState.READY or self._login is not None or self._sasl is None:
            return []
        self.reauthenticate_at_ms = None
        latest_ms = max((w.deadline_ms for w in self._waiting), default=now_ms)
        return self._authenticate(self._sasl, now_ms, max(now_ms, latest_ms) + self.request_timeout_ms)

    def _on_versions(self, response: ApiVersionsResponse, now_ms: int) -> list[Buffer]:
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
        if self._sasl is None:
            self._transition(ExchangeState.READY)
            return []
        self._transition(ExchangeState.AUTHENTICATING)
        return self._authenticate(self._sasl, now_ms, now_ms + self.request_timeout_ms)

    def _authenticate(self, sasl: Callable[[], SaslClient], now_ms: int, deadline_ms: int) -> list[Buffer]:
        from barnabas.protocol.login import Login  # here, because most connections need none of its imports

        self._login = Login(sasl())
        self._login_began_ms = now_ms
        return self._send_own(self._login.first(), now_ms, deadline_ms)

    def _send_own(self, request: Any, now_ms: int, deadline_ms: int) -> list[Buffer]:
        try:
            # SaslHandshake 0 would be followed by messages without Kafka's header
            version = pick_version(request.__class__, self.versions, VERSION_MAX)
            if request.API_KEY == SASL_HANDSHAKE_KEY and version < 1:
                raise NoCommonVersion("the broker serves SaslHandshake 0 only")
        except NoCommonVersion as error:
            raise SaslFailed(f"the broker does not serve SASL in a form that this client knows: {error}") from None
        form = _Form(request, version, self.client_id)
        parts = encode_parts(request, version, bytearray(form.head))
        return self._write(parts, form, deadline_ms, self._own_done, False)

    def timer_at(self) -> int | None:
        """The earliest deadline, in monotonic ms."""
        return self._earliest_ms

    def on_timer(self, now_ms: int) -> str | None:
        """The name of an API whose response is overdue; then close the connection."""
        if self._earliest_ms is not None and self._earliest_ms <= now_ms:
            overdue = min(self._unanswered(), key=lambda w: w.deadline_ms)
            return API[overdue.form.api_key].name
        return None

    def on_lost(self, error: Any) -> None:
        if self.state is not ExchangeState.CLOSED:
            self._transition(ExchangeState.DISCONNECTED)
        unanswered = self._unanswered()
        self._waiting.clear()
        self._held.clear()
        self._earliest_ms = self.reauthenticate_at_ms = self._held_from_ms = None
        self._login = self.own_answer = None
        for entry in unanswered:
            if entry.done is not None:
                self._deliver(entry.done, error)

    def close(self) -> None:
        """Accepts no more requests. Those in flight still get `on_lost`."""
        if self.state is not ExchangeState.CLOSED:
            self._transition(ExchangeState.CLOSED)

    def _ask_versions(self, version: int, now_ms: int) -> list[Buffer]:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        form = _Form(request, version, self.client_id)
        parts = encode_parts(request, version, bytearray(form.head))
        return self._write(parts, form, now_ms + self.request_timeout_ms, self._own_done, False)

    def _own_done(self, answer: Any) -> None:
        if not isinstance(answer, Exception):
            self.own_answer = answer

    def _send(
        self, parts: list[Buffer], form: _Form, deadline_ms: int, done: OnResponse | None, long: bool, now_ms: int
    ) -> list[Buffer]:
        """Completes an encoded request, or holds it. `done` is None without a response."""
        if self._login is None and (self._held_from_ms is None or now_ms < self._held_from_ms):
            return self._write(parts, form, deadline_ms, done, long)
        self._held.append(_Held(parts, form, deadline_ms, done, long))
        if done is not None and (self._earliest_ms is None or deadline_ms < self._earliest_ms):
            self._earliest_ms = deadline_ms
        return []

    def _write(
        self, parts: list[Buffer], form: _Form, deadline_ms: int, done: OnResponse | None, long: bool
    ) -> list[Buffer]:
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        first = parts[0]
        if not isinstance(first, bytearray):
            raise InvariantViolated("the first part of an encoded request must be its own buffer")
        _LENGTH.pack_into(first, 0, sum(map(len, parts)) - _LENGTH.size)
        _LENGTH.pack_into(first, _CORRELATION_ID_AT, correlation_id)
        if done is not None:
            self._waiting.append(_Waiting(correlation_id, form, deadline_ms, done, long))
            if self._earliest_ms is None or deadline_ms < self._earliest_ms:
                self._earliest_ms = deadline_ms
        return parts

    def _unanswered(self) -> list[_Waiting | _Held]:
        return [*self._waiting, *self._held]

    def _transition(self, state: ExchangeState) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"a connection cannot become {state.value} from {self.state.value}")
        self.state = state


def _deliver(done: OnResponse, outcome: Any) -> None:
    done(outcome)


def _skip_header_tags(frame: memoryview, position: int) -> int:
    """Tagged fields of a response header (KIP-482)."""
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
