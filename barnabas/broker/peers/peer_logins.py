"""PeerLogins: how a node logs in at other nodes.
SCRAM between controllers needs its credentials before the metadata log can be read; use PLAIN or SSL there, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.key import ConfigValue
from barnabas.broker.config.sasl_settings import BEARER_MECHANISM, SaslSettings
from barnabas.broker.config.table import OAUTH_LOGIN_KEYS
from barnabas.broker.scheduling.slices import Offload, in_place
from barnabas.errors import BarnabasError, BrokerError, ErrorCode
from barnabas.ports import Rng
from barnabas.protocol.jaas import JaasError, parse_jaas
from barnabas.protocol.kerberos import GSSAPI_MECHANISM, GssapiClient
from barnabas.protocol.oauth_settings import OAuthInvalid
from barnabas.protocol.sasl import OAuthBearerClient, PlainClient, SaslClient, SaslFailed
from barnabas.protocol.scram import SCRAM_MECHANISMS, ScramClient, ScramKeys
from barnabas.runtime.token_providers import LoginTokens, Tokens

_CONTROLLER: Final = "sasl.mechanism.controller.protocol"
_INTER_BROKER: Final = "sasl.mechanism.inter.broker.protocol"
_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
# Not the class that validates: it is for tokens of others.
_OAUTH_NAMES: Final = frozenset((*OAUTH_LOGIN_KEYS, "sasl.oauthbearer.sub.claim.name"))
_PACKAGE: Final = "org.apache.kafka.common.security"


class _Token(NamedTuple):
    text: str
    extensions: Mapping[str, str]
    source: Tokens


class PeerLogins:
    """SASL logins by listener. Errors name keys, never values.

    The address of a voter is that of a controller listener, every other one that of the inter-broker listener. Credentials are `username`
    and `password` of the listener's JAAS text, as in Kafka, read at each login with the mechanism: a changed password counts from the next
    one. All connections share the tokens of OAUTHBEARER (`runtime/token_providers.py`). GSSAPI uses the listener's principal and keytab;
    the host of the other node's principal is that of its address. Raises BrokerError(INVALID_CONFIG): the settings of a listener of other
    nodes are incomplete.
    """

    def __init__(self, config: BrokerConfig, rng: Rng, offload: Offload = in_place) -> None:
        self.offload = offload  # runs long steps: a hash of many iterations, or calls that wait for the KDC
        self._config = config
        self._rng = rng
        self._keys: dict[str, tuple[str, ScramKeys]] = {}  # by mechanism, with the password
        self._providers = LoginTokens()
        self._tokens: dict[str, _Token] = {}  # by listener, for the next conversation
        self._controllers = {(each.host, each.port) for each in config.voter_endpoints.values()}
        self._keys_of: dict[str, str] = {}  # by listener with SASL: the key of its mechanism
        for listener, key in (
            (config.inter_broker_listener, _INTER_BROKER),
            (config.controller_listener_name, _CONTROLLER),
        ):
            if config.security_protocol(listener) in _SASL:
                self._keys_of[listener] = key
                try:
                    if self._mechanism(key) == BEARER_MECHANISM:
                        self._provider(listener)
                    else:
                        self._conversation(listener, key, "")
                except SaslFailed as error:
                    raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def sasl(self, host: str, port: int) -> Callable[[], SaslClient] | None:
        listener = self._listener(host, port)
        key = self._keys_of.get(listener)
        return None if key is None else partial(self._conversation, listener, key, host)

    async def prepare(self, host: str, port: int) -> None:
        """Gets a token for the next conversation, if it needs one. Raises SaslFailed."""
        listener = self._listener(host, port)
        key = self._keys_of.get(listener)
        if key is None or self._mechanism(key) != BEARER_MECHANISM:
            return
        provider = self._provider(listener)
        try:
            self._tokens[listener] = _Token(await provider.token(), provider.extensions(), provider)
        except (BarnabasError, OSError, UnicodeError) as error:
            raise SaslFailed(f"{BEARER_MECHANISM}: no token: {error}") from None

    def refused(self, host: str, port: int) -> None:
        """A refused token is not used again."""
        token = self._tokens.get(self._listener(host, port))
        if token is not None:
            token.source.token_refused(token.text)

    def _listener(self, host: str, port: int) -> str:
        config = self._config
        is_controller = (host, port) in self._controllers
        return config.controller_listener_name if is_controller else config.inter_broker_listener

    def _mechanism(self, key: str) -> str:
        config = self._config
        found = config.get_str(_CONTROLLER) if key == _CONTROLLER else config.get_str(_INTER_BROKER)
        return (found or "").upper()

    def _conversation(self, listener: str, key: str, host: str) -> SaslClient:
        mechanism = self._mechanism(key)
        if mechanism == BEARER_MECHANISM:
            token = self._tokens.get(listener)
            if token is None:
                raise SaslFailed(f"{BEARER_MECHANISM}: no token yet")
            return OAuthBearerClient(token.text, token.extensions)
        if mechanism == GSSAPI_MECHANISM:
            return self._kerberos(listener, host)
        if mechanism != "PLAIN" and mechanism not in SCRAM_MECHANISMS:
            raise SaslFailed(
                f"{key}={mechanism} is not served between nodes: set {key}=PLAIN, SCRAM-SHA-512, OAUTHBEARER or GSSAPI "
                f"for listener {listener}"
            )
        username, password = self._credentials(listener, mechanism)
        if mechanism == "PLAIN":
            return PlainClient(username, password)
        known = self._keys.get(mechanism)
        if known is None or known[0] != password:
            known = self._keys[mechanism] = password, ScramKeys(mechanism, password)
        nonce = self._rng.uuid().hex() + self._rng.uuid().hex()
        return ScramClient(mechanism, username, known[1], nonce)

    def _provider(self, listener: str) -> Tokens:
        """The token provider of a listener. Raises SaslFailed."""
        settings = SaslSettings(self._config, listener)

        def value(name: str) -> ConfigValue:
            return settings.value(BEARER_MECHANISM, name) if name in _OAUTH_NAMES else None

        prefix = f"listener.name.{listener.lower()}.{BEARER_MECHANISM.lower()}."
        try:
            jaas = settings.jaas(BEARER_MECHANISM)
            return self._providers.of(value, {} if jaas is None else jaas.options)
        except (OAuthInvalid, BrokerError) as error:
            why = error.message if isinstance(error, BrokerError) else str(error)
            raise SaslFailed(
                f"this node cannot log in at listener {listener} of other nodes: {why} (with the prefix {prefix} or without it)"
            ) from None

    def _kerberos(self, listener: str, host: str) -> SaslClient:
        """A conversation by GSSAPI. Raises SaslFailed."""
        try:
            service = SaslSettings(self._config, listener).kerberos_service()
        except BrokerError as error:
            raise SaslFailed(error.message or "") from None
        from barnabas.runtime.kerberos import KerberosInitiator, kerberos_is_missing  # imported only if GSSAPI is used

        missing = kerberos_is_missing()
        if missing is not None:
            raise SaslFailed(missing)
        initiator = KerberosInitiator(service.service_name, principal=service.principal, keytab=service.keytab)
        return GssapiClient(initiator.context(host))

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
