"""Lifecycle: registers the broker, keeps its session with the controller and performs its controlled shutdown.
KIP-631 (registration, heartbeats, controlled shutdown), KIP-858 (offline directories), KIP-966 (previous broker epoch).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from barnabas.broker.api.call import Done
from barnabas.broker.config.broker_config import BrokerConfig, Endpoint
from barnabas.broker.controller.channel import ControllerChannel
from barnabas.broker.controller.core.features import supported_features
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import BrokerImage, MetadataDelta, MetadataImage
from barnabas.broker.replica.log_dir import LogDirectory
from barnabas.broker.replica.log_dirs import LogDirectories
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BarnabasError, BrokerError, ErrorCode, InvariantViolated, LocalProtocolError
from barnabas.loggers import logger
from barnabas.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    RegistrationListener,
)
from barnabas.protocol.schema import Message

log = logger("kafka.server")

RETRY_MS_MIN: Final = 20  # between attempts to register or to be unfenced; doubles up to RETRY_MS_MAX
RETRY_MS_MAX: Final = 1_000
TELL_FIRST_MS: Final = 2_000  # then the log says why the broker waits for the controller
TELL_EVERY_MS: Final = 10_000  # repeats of that log line
SHUTDOWN_MS_MAX: Final = 30_000  # limit while a controller answers that leaderships are still being moved
SHUTDOWN_SILENCE_MS_MAX: Final = 1_000  # limit while no controller answers
SHUTDOWN_WATCH_MS: Final = 100  # between checks of these two limits
FOR_EVER: Final = 2**62

# Refusals that no retry cures.
FINAL_REFUSALS: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
# Errors of a heartbeat whose registration is no longer valid.
REGISTRATION_GONE: Final = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})


class RegistrationRefused(BarnabasError):
    """The controller rejected this broker, or did not register it in time."""


class BrokerState(Enum):
    """State of a broker, as Kafka's BrokerState."""

    STARTING = "not registered"
    RECOVERY = "registered, its logs are being recovered"
    RUNNING = "serves"
    PENDING_CONTROLLED_SHUTDOWN = "hands its leaderships over"
    STOPPED = "has left"


VALID_PREVIOUS: Final[dict[BrokerState, frozenset[BrokerState]]] = {
    BrokerState.STARTING: frozenset(),
    BrokerState.RECOVERY: frozenset({BrokerState.STARTING}),
    BrokerState.RUNNING: frozenset({BrokerState.RECOVERY}),
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: frozenset({BrokerState.RUNNING}),
    BrokerState.STOPPED: frozenset(
        {BrokerState.STARTING, BrokerState.RECOVERY, BrokerState.PENDING_CONTROLLED_SHUTDOWN}
    ),
}


class Lifecycle:
    """Registration, heartbeats and controlled shutdown of one broker.

    Each start registers the broker again, fenced until `unfence`, so that it leads nothing before its logs are recovered. Then a heartbeat
    every broker.heartbeat.interval.ms keeps the session; a changed state is sent at once. A step waits until the own image shows it; a
    broker stops if another process has registered its id.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        current: CurrentImage,
        controller: ControllerChannel,
        log_dirs: LogDirectories,
        *,
        alone: bool,
    ) -> None:
        """Sends nothing. `alone`: no other node can be the controller."""
        self._reactor = reactor
        self._config = config
        self._node_id = config.node_id
        self._current = current
        self._controller = controller
        self._log_dirs = log_dirs
        self._alone = alone
        self._on_session_over: Callable[[], None]  # from `register` on
        self.state = BrokerState.STARTING
        self.broker_epoch = -1  # of the present registration (the offset of its record), -1 before it
        self.incarnation_id = reactor.rng.uuid()  # of this process
        self._session_ms = self._config.get_int("broker.session.timeout.ms")
        self._interval_ms = self._config.get_int("broker.heartbeat.interval.ms")
        self._session_until_ms = FOR_EVER
        self._fenced_ms = 0  # time of the last answer that this running broker is fenced
        self._session_watch: Timer | None = None  # armed for the end of the session as of the time of arming
        self._registration: BrokerRegistrationRequest | None = None
        self._shutdown_allowed: asyncio.Future[bool] | None = None
        self._awaited: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []  # conditions on the own image
        self._asked: dict[asyncio.Future[object], None] = {}  # answers of the controller that steps wait for
        self._heartbeat_due: Timer | None = None
        self._in_flight = False
        self._heartbeat_again = False  # something changed during a pending heartbeat
        self._failures = 0  # consecutive heartbeats without a good answer
        self._heard_ms = 0  # time of the last good answer
        self._told_offline: tuple[bytes, ...] = ()  # failed directories that the controller knows

    def become(self, state: BrokerState) -> None:
        """Raises LocalProtocolError if VALID_PREVIOUS does not allow the change."""
        if self.state not in VALID_PREVIOUS[state]:
            raise LocalProtocolError(f"broker {self._node_id} is {self.state.name}, it cannot be {state.name}")
        self.state = state

    # --- registration ---------------------------------------------------------------------------------------------

    def register_controller(self) -> None:
        """Registers this controller's endpoints and features with the active controller; repeats until it is recorded."""
        endpoint = self._config.controller_listener
        request = ControllerRegistrationRequest(
            controller_id=self._node_id,
            incarnation_id=self.incarnation_id,
            listeners=_listeners([endpoint] if endpoint is not None else []),
            features=supported_features(),
        )
        self._reactor.scope.start(
            self._until_accepted(request, "register as a controller"), name="controller registration"
        )

    async def register(
        self, endpoints: Sequence[Endpoint], previous_broker_epoch: int, *, on_session_over: Callable[[], None]
    ) -> None:
        """Registers this process, fenced, and waits until the own image holds the registration.

        `previous_broker_epoch` is from the clean-shutdown file, −1 after an unclean stop. `on_session_over` is called when the session with
        the controller has ended, and repeatedly until the next one begins. Raises RegistrationRefused, also after
        initial.broker.registration.timeout.ms (KIP-631).
        """
        self._on_session_over = on_session_over
        self._registration = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=self._log_dirs.cluster_id,
            incarnation_id=self.incarnation_id,
            listeners=_listeners(endpoints),
            features=supported_features(),
            rack=self._config.get_str("broker.rack"),
            log_dirs=self._log_dirs.online_ids(),
            previous_broker_epoch=previous_broker_epoch,
        )
        await self._register(self._registration, self._config.get_int("initial.broker.registration.timeout.ms"))
        self.become(BrokerState.RECOVERY)

    async def _register(self, request: BrokerRegistrationRequest, timeout_ms: int = FOR_EVER) -> None:
        answer = await self._until_accepted(request, "register", timeout_ms)
        self.broker_epoch = answer.broker_epoch
        await self._image_shows(lambda: self._registered is not None)

    async def _until_accepted(self, request: Message, what: str, timeout_ms: int = FOR_EVER) -> Any:
        pause_ms = RETRY_MS_MIN
        now_ms = self._reactor.clock.monotonic_ms()
        until_ms, told_ms = now_ms + timeout_ms, now_ms - TELL_EVERY_MS + TELL_FIRST_MS
        while True:
            left_ms = until_ms - self._reactor.clock.monotonic_ms()
            answer = await self._ask(request, max(1, min(self._session_ms, left_ms)))
            if not isinstance(answer, BrokerError) and answer.error_code == 0:
                return answer
            code = answer.code if isinstance(answer, BrokerError) else ErrorCode(answer.error_code)
            reason = _reason(answer)
            if code in FINAL_REFUSALS:
                raise RegistrationRefused(
                    f"the controller refuses node {self._node_id} of cluster {self._log_dirs.cluster_id}: {reason}"
                )
            if self._reactor.clock.monotonic_ms() >= until_ms:
                raise RegistrationRefused(
                    f"node {self._node_id} could not {what} within {timeout_ms} ms (initial.broker.registration.timeout.ms): "
                    f"{reason}; start a majority of the controllers, then this node again"
                )
            if self._reactor.clock.monotonic_ms() - told_ms >= TELL_EVERY_MS:
                told_ms = self._reactor.clock.monotonic_ms()
                log.warning("Node waits for the controller: node_id=%d step=%s reason=%s", self._node_id, what, reason)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MS_MAX)

    async def unfence(self) -> None:
        """All parts are ready to serve: requests to be unfenced, and waits until the own image shows it."""
        self.become(BrokerState.RUNNING)
        self.heartbeat_now()
        await self._image_shows(lambda: self._registered is not None and not self._registered.fenced)

    @property
    def _registered(self) -> BrokerImage | None:
        """This registration in the own image, if the image holds it."""
        broker = self._current.image.brokers.get(self._node_id)
        return broker if broker is not None and broker.epoch == self.broker_epoch else None

    def on_image(self, _former: MetadataImage, _image: MetadataImage, _delta: MetadataDelta) -> None:
        waiting, self._awaited = self._awaited, []
        for condition, future in waiting:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                self._awaited.append((condition, future))
        registered = self._registered
        if registered is not None and registered.fenced and self.state is BrokerState.RUNNING and not self._in_flight:
            self.heartbeat_now()  # the controller fenced this broker: request again

    async def _image_shows(self, condition: Callable[[], bool]) -> None:
        if self._reactor.failure is not None:
            raise self._reactor.failure
        if not condition():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.append((condition, future))
            await future

    # --- heartbeats -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.heartbeat_now()

    def heartbeat_now(self) -> None:
        """Sends the next heartbeat now, or as soon as the pending one is answered: the requested state has changed."""
        if self.state in (BrokerState.STARTING, BrokerState.STOPPED):
            return
        if self._in_flight:
            self._heartbeat_again = True
            return
        self._arm(0)

    def on_directory_failed(self, directory: LogDirectory) -> None:
        """Reports the failure to the controller. The node stops if that fails for log.dir.failure.timeout.ms (KIP-858)."""
        self.heartbeat_now()
        timeout_ms = self._config.get_int("log.dir.failure.timeout.ms")

        def look() -> None:
            if directory.failure is not None and directory.directory_id not in self._told_offline:
                log.critical(
                    "Controller could not be told that a log directory failed: timeout_ms=%d directory=%s",
                    timeout_ms,
                    directory,
                )
                self._reactor.fatal(directory.failure)

        if directory.directory_id:
            self._reactor.call_later(timeout_ms, look)

    def may_lead(self) -> bool:
        """Whether no other broker can lead this broker's partitions: heartbeats were answered within the session timeout."""
        return self._reactor.clock.monotonic_ms() < self._session_until_ms

    def followed_since_ms(self) -> int | None:
        """None during the session; after it, the monotonic time since which followers must have followed a leader here.

        The controller may have fenced a broker that was silent for a session. Half a session: if all links of this broker fail at once, its
        followers have been silent for that long when its session ends.
        """
        now_ms = self._reactor.clock.monotonic_ms()
        return None if now_ms < self._session_until_ms else max(now_ms - self._session_ms // 2, self._fenced_ms)

    def allocate_producer_ids(self, done: Done[int]) -> None:
        """`done` gets the first id of a block that belongs to this registration."""
        self._controller.allocate_producer_ids(self.broker_epoch, done)

    def _arm(self, delay_ms: int) -> None:
        if self._heartbeat_due is not None:
            self._heartbeat_due.cancel()
        self._heartbeat_due = self._reactor.call_later(delay_ms, self._beat)

    def _beat(self) -> None:
        if self._in_flight or self.state in (BrokerState.STARTING, BrokerState.STOPPED):
            return
        self._in_flight, self._heartbeat_again = True, False
        sent_ms = self._reactor.clock.monotonic_ms()
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._current.image.offset,
            want_fence=self.state is BrokerState.RECOVERY,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=self._log_dirs.offline_ids(),
        )
        self._controller.request(
            request,
            lambda answer: self._on_answer(answer, sent_ms, request.offline_log_dirs),
            timeout_ms=self._session_ms // 2,
        )

    def _on_answer(
        self, answer: BrokerHeartbeatResponse | BrokerError, sent_ms: int, offline_log_dirs: Sequence[bytes]
    ) -> None:
        self._in_flight = False
        if self.state is BrokerState.STOPPED:
            return
        if isinstance(answer, BrokerError) or answer.error_code:
            code = answer.code if isinstance(answer, BrokerError) else ErrorCode(answer.error_code)
            if code in REGISTRATION_GONE:
                self._on_registration_gone(code)
                return
            self._failures += 1
            log.log(
                logging.WARNING if self._failures == 3 else logging.DEBUG,
                "Heartbeat has no good answer: node_id=%d reason=%s",
                self._node_id,
                _reason(answer),
            )
            self._arm(min(RETRY_MS_MIN << min(self._failures, 10), self._interval_ms))
            return
        self._failures = 0
        self._told_offline = tuple(offline_log_dirs)
        self._heard_ms = self._reactor.clock.monotonic_ms()
        if answer.is_fenced and self.state is BrokerState.RUNNING and not self._alone:
            # Other brokers lead these partitions now, if they can: the next image will show it.
            self._session_until_ms = sent_ms
            self._fenced_ms = self._heard_ms
            self._on_session_over()
        self._renew(sent_ms)
        if answer.should_shut_down:
            self._allow_shutdown(True)
            return
        wants_more = answer.is_fenced and self.state is BrokerState.RUNNING
        if self._heartbeat_again or wants_more or self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._arm(0 if self._heartbeat_again else RETRY_MS_MIN)
        else:
            self._arm(self._interval_ms)

    def _renew(self, sent_ms: int) -> None:
        until_ms = sent_ms + self._session_ms
        if self._alone:
            return  # no other node can change the leaders
        if self.may_lead():
            self._session_until_ms = until_ms
            self._watch_session()
            return

        def caught_up(error: BrokerError | None) -> None:
            if error is None:
                self._session_until_ms = max(self._session_until_ms, until_ms)
                self._watch_session()

        self._controller.when_caught_up(caught_up)

    def _watch_session(self) -> None:
        """Keeps one timer for the end of the session: rearms it when it fires, not at every heartbeat."""
        if self._session_watch is None:
            left_ms = self._session_until_ms - self._reactor.clock.monotonic_ms()
            self._session_watch = self._reactor.call_later(max(left_ms, 0), self._on_session_watch)

    def _on_session_watch(self) -> None:
        self._session_watch = None
        if self.may_lead():
            self._watch_session()
        else:
            self._on_session_over()
            self._session_watch = self._reactor.call_later(self._session_ms // 2, self._on_session_watch)

    def _on_registration_gone(self, code: ErrorCode) -> None:
        broker = self._current.image.brokers.get(self._node_id)
        if broker is not None and broker.epoch > self.broker_epoch and broker.incarnation_id != self.incarnation_id:
            self._reactor.fatal(
                BrokerError(
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                    f"another process has registered as broker {self._node_id}: each node needs an id of its own",
                )
            )
            return
        self._failures += 1
        if broker is not None or self._failures < 3:  # the own image may be older than the controller's
            self._arm(RETRY_MS_MIN << min(self._failures, 6))
            return
        log.warning("Node is no longer registered, registers again: node_id=%d error=%s", self._node_id, code.name)
        self._reactor.scope.start(self._register_anew(), name="registration")

    async def _register_anew(self) -> None:
        if self._registration is None:
            raise InvariantViolated("a broker that never registered cannot register again")
        self._registration.previous_broker_epoch = self.broker_epoch
        await self._register(self._registration)
        self._failures = 0
        self.heartbeat_now()

    # --- shutdown -------------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Hands over leaderships, for a limited time, if controlled.shutdown.enable: else the controller fences the broker as killed."""
        if self.state is BrokerState.RUNNING and not self._config.get_bool("controlled.shutdown.enable"):
            self.become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        if self.state is not BrokerState.RUNNING:
            if self.state is not BrokerState.STOPPED:
                self.become(BrokerState.STOPPED)
            return
        began_ms = self._heard_ms = self._reactor.clock.monotonic_ms()
        self._shutdown_allowed = asyncio.get_running_loop().create_future()
        self.become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        self.heartbeat_now()

        def watch() -> None:
            now_ms = self._reactor.clock.monotonic_ms()
            if now_ms - self._heard_ms >= SHUTDOWN_SILENCE_MS_MAX or now_ms - began_ms >= SHUTDOWN_MS_MAX:
                self._allow_shutdown(False)
            else:
                self._reactor.call_later(SHUTDOWN_WATCH_MS, watch)

        self._reactor.call_later(SHUTDOWN_WATCH_MS, watch)
        if not await self._shutdown_allowed:
            log.warning("Node stops without the controller's consent: node_id=%d", self._node_id)
        self.become(BrokerState.STOPPED)

    def _allow_shutdown(self, allowed: bool) -> None:
        if self._shutdown_allowed is not None and not self._shutdown_allowed.done():
            self._shutdown_allowed.set_result(allowed)

    def on_fatal(self, error: BaseException) -> None:
        """The node failed: ends a start or stop that waits for the controller."""
        waiting: list[asyncio.Future[object] | asyncio.Future[None] | asyncio.Future[bool]] = [
            *self._asked,
            *(future for _, future in self._awaited),
        ]
        if self._shutdown_allowed is not None:
            waiting.append(self._shutdown_allowed)
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    # --- requests to the controller -------------------------------------------------------------------------------

    async def _ask(self, request: Message, timeout_ms: int) -> Any:
        if self._reactor.failure is not None:
            raise self._reactor.failure
        waiting: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._asked[waiting] = None

        def done(answer: object) -> None:
            if not waiting.done():
                waiting.set_result(answer)

        self._controller.request(request, done, timeout_ms=timeout_ms)
        try:
            return await waiting
        finally:
            del self._asked[waiting]


def _reason(answer: Any) -> str:
    """Why there is no good answer; the controller's channel turns a refusal of the whole request into a BrokerError."""
    error = answer if isinstance(answer, BrokerError) else None
    code = error.code if error is not None else ErrorCode(answer.error_code)
    said = error.message if error is not None else getattr(answer, "error_message", None)
    return f"{code.name}: {said or code.meaning}"


def _listeners(endpoints: Sequence[Endpoint]) -> list[RegistrationListener]:
    return [
        RegistrationListener(
            name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol_id
        )
        for each in endpoints
    ]
