"""PeerLogins: how a node logs in at other nodes.

Driven by: `peers.py`, for each connection and each renewal of a session. Emits: conversations of PLAIN and SCRAM; INVALID_CONFIG.

The address decides about the listener: the address of a voter is that of a controller listener, every other one that of the
inter-broker listener. The credentials are the options `username` and `password` of the JAAS text of the listener and the mechanism, as
in Kafka; they and the mechanism are read at each login, so a changed password counts from the next one. Errors name keys, never values.

SCRAM between controllers needs its credentials before the metadata log can be read; use PLAIN or SSL there, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from barnabas.broker.config import BrokerConfig
from barnabas.errors import BrokerError, ErrorCode
from barnabas.ports import Rng
from barnabas.protocol.jaas import JaasError, parse_jaas
from barnabas.protocol.sasl import PlainClient, SaslClient, SaslFailed
from barnabas.protocol.scram import SCRAM_MECHANISMS, ScramClient, ScramKeys

__all__ = ["PeerLogins"]

_CONTROLLER: Final = "sasl.mechanism.controller.protocol"
_INTER_BROKER: Final = "sasl.mechanism.inter.broker.protocol"
_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_PACKAGE: Final = "org.apache.kafka.common.security"


class PeerLogins:
    """See the module.

    Raises:
        BrokerError: INVALID_CONFIG: the settings of a listener of other nodes are incomplete.
    """

    def __init__(self, config: BrokerConfig, rng: Rng) -> None:
        self._config = config
        self._rng = rng
        self._keys: dict[str, tuple[str, ScramKeys]] = {}  # by mechanism, with the password
        self._controllers = {(each.host, each.port) for each in config.voter_endpoints.values()}
        self._keys_of: dict[str, str] = {}  # by listener, of those with SASL: the key of its mechanism
        for listener, key in (
            (config.inter_broker_listener, _INTER_BROKER),
            (config.controller_listener_name, _CONTROLLER),
        ):
            if config.security_protocol(listener) in _SASL:
                self._keys_of[listener] = key
                try:
                    self._conversation(listener, key)
                except SaslFailed as error:
                    raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def sasl(self, host: str, port: int) -> Callable[[], SaslClient] | None:
        """Makes the conversations with the node at an address; None if its listener has no SASL."""
        config = self._config
        is_controller = (host, port) in self._controllers
        listener = config.controller_listener_name if is_controller else config.inter_broker_listener
        key = self._keys_of.get(listener)
        return None if key is None else partial(self._conversation, listener, key)

    def _conversation(self, listener: str, key: str) -> SaslClient:
        config = self._config
        found = config.get_str(_CONTROLLER) if key == _CONTROLLER else config.get_str(_INTER_BROKER)
        mechanism = (found or "").upper()
        if mechanism != "PLAIN" and mechanism not in SCRAM_MECHANISMS:
            raise SaslFailed(
                f"{key}={mechanism} is not served between nodes: set {key}=PLAIN or SCRAM-SHA-512 for listener {listener}"
            )
        username, password = self._credentials(listener, mechanism)
        if mechanism == "PLAIN":
            return PlainClient(username, password)
        known = self._keys.get(mechanism)
        if known is None or known[0] != password:
            known = self._keys[mechanism] = password, ScramKeys(mechanism, password)
        nonce = self._rng.uuid().hex() + self._rng.uuid().hex()
        return ScramClient(mechanism, username, known[1], nonce)

    def _credentials(self, listener: str, mechanism: str) -> tuple[str, str]:
        """User name and password. Raises SaslFailed."""
        key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        works = f'set {key}={_PACKAGE}.{module} required username="…" password="…";'
        text = self._config.listener_value(listener, f"{mechanism.lower()}.sasl.jaas.config")
        if not isinstance(text, str) or not text:
            raise SaslFailed(f"this node cannot log in at listener {listener} of other nodes: {works}")
        try:
            options = parse_jaas(text).options
        except JaasError as error:
            raise SaslFailed(f"{key}: {error}") from None
        username, password = options.get("username"), options.get("password")
        if not username or not password:
            missing = "password" if username else "username"
            raise SaslFailed(f"{key} has no {missing}, so this node cannot log in at other nodes: {works}")
        return username, password
