"""ServerLogins: logins on a node's SASL listeners, with look-ups of users, tokens and keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.sasl_settings import (
    BEARER_MECHANISM,
    PLAIN_MECHANISM,
    SASL_PROTOCOLS,
    SaslConfig,
    SaslSettings,
)
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.sasl.oauthbearer_server import (
    BearerServer,
    TokenRefused,
    checked_claims,
    signed_claims,
    unsecured_claims,
)
from barnabas.broker.sasl.scram_server import (
    ITERATIONS_MIN,
    SCRAM_HASHES,
    ScramServer,
    StoredCredential,
    made_salt,
    salt_size,
    token_hmac,
)
from barnabas.broker.sasl.server_mechanism import LoginIdentity, PlainServer, ServerMechanism
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Offload, in_place
from barnabas.broker.security.core.sasl_session import SaslSession
from barnabas.broker.security.kerberos_logins import KerberosLogins
from barnabas.broker.security.server_login import (
    Authentications,
    LoginConnection,
    LoginService,
    LoginSteps,
    ServerLogin,
)
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.kerberos import GSSAPI_MECHANISM
from barnabas.protocol.oauth_settings import ALLOWED_URLS, OAuthInvalid, check_allowed
from barnabas.runtime.offload import in_own_thread
from barnabas.runtime.token_endpoint import endpoint_tls

if TYPE_CHECKING:
    from barnabas.broker.api.router import Router
    from barnabas.broker.security.jwks import SigningKeys

log = logger("kafka.network.SocketServer")

SCRAM_MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}  # their numbers in the metadata log
TOKEN_KEYS_MAX: Final = 10_000  # derived keys of tokens that are kept
SALT_BYTES: Final = 16
TOKEN_MECHANISMS: Final = frozenset({BEARER_MECHANISM, GSSAPI_MECHANISM})  # their tokens may be large
REQUEST_BYTES_MAX: Final = 10 * 1024  # of a request of a login by another mechanism: SCRAM takes messages of 8 KiB
# Number of credentials that an unknown user's may resemble: 5 ms after a change.
LIKE_MAX: Final = 10_000
KINDS_MAX: Final = 100  # of them: a login of an unknown user costs a microsecond for each


class LoginNode(Protocol):
    """What logins need from their node."""

    reactor: Reactor
    config: BrokerConfig
    current_image: CurrentImage
    cluster_id: str


class ServerLogins:
    """Creates the logins of connections.

    Args:
        router: of unauthenticated connections.
        cluster_id: returns the id of the cluster.
        listeners: names of the SASL listeners.
        offload: runs blocking calls in a thread.

    Raises:
        BrokerError: INVALID_CONFIG: a keytab is unusable.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: SaslConfig,
        current: CurrentImage,
        router: Router,
        cluster_id: Callable[[], str],
        listeners: list[str],
        offload: Offload,
    ) -> None:
        self.reactor = reactor
        self.router = router
        self._current = current
        self._cluster_id = cluster_id
        self._config = config
        self._token_keys: dict[tuple[str, str, str], tuple[bytes, bytes, bytes]] = {}  # by mechanism, token and secret
        self._kinds: dict[int, list[tuple[int, int | None]]] = {}  # by mechanism
        self._kinds_of: object = None  # the credentials that they are of
        self._offload = offload
        self._settings = {name: SaslSettings(config, name) for name in listeners}
        self._kerberos = KerberosLogins(list(self._settings.values()), offload)
        self._steps = LoginSteps(reactor, self._kerberos.offload)
        self._keys: dict[str, SigningKeys] = {}  # by URL
        for settings in self._settings.values():
            url = settings.keys_url
            if BEARER_MECHANISM in settings.mechanisms and url is not None and url not in self._keys:
                self._keys[url] = self._signing_keys(settings, url)

    def asks(self, listener: str) -> bool:
        """Whether clients of the listener must log in."""
        return listener in self._settings

    def size_bytes_max(self, listener: str, mechanism: str = "") -> int:
        """Largest request before a login is complete, by mechanism if it is chosen."""
        configured = self._settings[listener].number("", "sasl.server.max.receive.size")
        return configured if mechanism in TOKEN_MECHANISMS else min(configured, REQUEST_BYTES_MAX)

    def begin(
        self,
        connection: LoginConnection,
        listener: str,
        service: LoginService,
        counts: Authentications,
    ) -> ServerLogin | None:
        """Login of a connection, which stops it at its end, or None. `service` is for later; `counts`: the listener's."""
        settings = self._settings.get(listener)
        if settings is None:
            return None
        keys = self._keys.get(settings.keys_url or "")
        session = SaslSession(
            settings.mechanisms,
            partial(self._exchange, settings),
            lambda mechanism: settings.number(mechanism, "connections.max.reauth.ms"),
        )
        login = ServerLogin(
            self.reactor,
            connection,
            session,
            settings.number("", "connection.failed.authentication.delay.ms"),
            confined=self.router,
            size_bytes_max=partial(self.size_bytes_max, listener),
            service=service,
            keys=keys,
            counts=counts,
            steps=self._steps,
        )
        connection.router = self.router
        return login

    def _exchange(self, settings: SaslSettings, mechanism: str) -> ServerMechanism:
        if mechanism == PLAIN_MECHANISM:
            return PlainServer(settings.plain_users())
        if mechanism == BEARER_MECHANISM:
            return BearerServer(partial(self._bearer, settings), _log_refused)
        if mechanism == GSSAPI_MECHANISM:
            return self._kerberos.exchange(settings)
        nonce = base64.b64encode(self.reactor.rng.uuid() + self.reactor.rng.uuid()).decode()
        return ScramServer(
            mechanism,
            partial(self._credential, mechanism),
            partial(self._unknown, mechanism),
            partial(self._derivation, mechanism),
            nonce,
        )

    @property
    def signing_keys(self) -> list[SigningKeys]:
        return list(self._keys.values())

    def start(self) -> None:
        for keys in self._keys.values():
            keys.read()

    def _signing_keys(self, settings: SaslSettings, url: str) -> SigningKeys:
        """Raises BrokerError (INVALID_CONFIG)."""
        from barnabas.broker.security.jwks import (  # with urllib, which other brokers need not load
            KeySource,
            SigningKeys,
        )

        key, jaas = "sasl.oauthbearer.jwks.endpoint.url", settings.jaas(BEARER_MECHANISM)
        options = {} if jaas is None else jaas.options
        try:
            check_allowed(ALLOWED_URLS, key, url, os.environ)
            if options:
                endpoint_tls(url, options)  # to find mistakes early
        except OAuthInvalid as error:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"listener {settings.listener}: {error}") from None
        return SigningKeys(
            self.reactor,
            self._offload,
            KeySource(url, options),
            settings.number(BEARER_MECHANISM, "sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            settings.number(BEARER_MECHANISM, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            settings.number(BEARER_MECHANISM, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        )

    def _bearer(self, settings: SaslSettings, token: str, now_ms: int) -> LoginIdentity:
        """Identity of an OAuth token. Raises TokenRefused."""
        if settings.unsecured:
            return checked_claims(unsecured_claims(token), settings.bearer_rules(), now_ms)
        found = self._keys.get(settings.keys_url or "")
        if found is None or found.keys is None:
            raise TokenRefused("the signing keys are not read yet")
        try:
            claims = signed_claims(token, found.keys)
        except TokenRefused as refused:
            if refused.unknown_key:
                found.on_unknown_key()
            raise
        return checked_claims(claims, settings.bearer_rules(), now_ms)

    def _credential(self, mechanism: str, name: str, by_token: bool) -> StoredCredential | None:
        if by_token:
            return self._token_credential(mechanism, name)
        found = self._current.image.scram_credentials.get((SCRAM_MECHANISMS[mechanism], name))
        if found is None:
            return None
        return StoredCredential(found.salt, found.stored_key, found.server_key, found.iterations, LoginIdentity(name))

    def _token_credential(self, mechanism: str, token_id: str) -> StoredCredential | None:
        """A delegation token's credential: its password is its HMAC in base64 (KIP-48)."""
        token, secret = self._current.image.delegation_tokens.get(token_id), self._token_secret
        if token is None or secret is None:
            return None
        expires_at_ms = min(token.expiration_timestamp, token.max_timestamp)
        if expires_at_ms <= self.reactor.clock.now_ms():
            return None
        # The keys may have been evicted since they were derived in a thread.
        keys = self._token_keys.get((mechanism, token_id, secret)) or _derived(mechanism, token_id, secret)
        owner = LoginIdentity(token.owner.partition(":")[2], expires_at_ms, token=True)
        return StoredCredential(*keys, ITERATIONS_MIN, owner)

    def _derivation(self, mechanism: str, token_id: str) -> Callable[[], None] | None:
        """Derives the keys of a delegation token; None if that is done, or without such a token."""
        secret = self._token_secret
        if secret is None or token_id not in self._current.image.delegation_tokens:
            return None
        key = mechanism, token_id, secret

        def derive() -> None:
            if len(self._token_keys) >= TOKEN_KEYS_MAX:
                self._token_keys.clear()
            self._token_keys[key] = _derived(*key)

        return None if key in self._token_keys else derive

    @property
    def _token_secret(self) -> str | None:
        secret = self._config.listener_value("", "delegation.token.secret.key")
        return secret if isinstance(secret, str) and secret else None

    def _unknown(self, mechanism: str, name: str, by_token: bool) -> tuple[bytes, int]:
        """Salt and iterations for a name without credential: stable per name, on every node, and like those in use.

        They depend on the server key of the oldest credential, a secret. From the cluster id alone a client could
        compute the salt of every unknown name, and tell users apart. Each name chooses by itself among the iterations
        and kinds of salts in use, so most names keep theirs when another user is added.
        """
        oldest = next(iter(self._current.image.scram_credentials.values()), None)
        key = hashlib.sha512(b"" if oldest is None else oldest.server_key).digest()
        seed = hmac.digest(key, f"{self._cluster_id()} {mechanism} {by_token} {name}".encode(), "sha512")
        in_use = self._kinds_in_use(SCRAM_MECHANISMS[mechanism]) if not by_token else [(ITERATIONS_MIN, SALT_BYTES)]
        iterations, size = max(in_use, key=lambda kind: hmac.digest(seed, repr(kind).encode(), "sha256"))
        return made_salt(size, seed), iterations

    def _kinds_in_use(self, code: int) -> list[tuple[int, int | None]]:
        credentials = self._current.image.scram_credentials
        if self._kinds_of is not credentials:
            found: dict[int, dict[tuple[int, int | None], None]] = {}
            for (kind, _), each in islice(credentials.items(), LIKE_MAX):
                found.setdefault(kind, {})[each.iterations, salt_size(each.salt)] = None
            self._kinds_of, self._kinds = credentials, {kind: list(each)[:KINDS_MAX] for kind, each in found.items()}
        return self._kinds.get(code) or [(ITERATIONS_MIN, SALT_BYTES)]


def _derived(mechanism: str, token_id: str, secret: str) -> tuple[bytes, bytes, bytes]:
    """Salt, stored key and server key of a delegation token: the same on every node."""
    password = base64.b64encode(token_hmac(secret, token_id))
    hash_name, salt = SCRAM_HASHES[mechanism], made_salt(SALT_BYTES, b"salt " + password)
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, ITERATIONS_MIN)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return salt, hashlib.new(hash_name, client_key).digest(), hmac.digest(salted, b"Server Key", hash_name)


def node_logins(node: LoginNode, router: Router, offload: Offload) -> ServerLogins | None:
    """The logins of a node; None without a SASL listener."""
    endpoints = (*node.config.listeners, node.config.controller_listener)
    names = [each.name for each in endpoints if each is not None and each.security_protocol in SASL_PROTOCOLS]
    if not names:
        return None
    # A key server may be slow: it must not block a shared thread.
    beside = offload if offload is in_place else in_own_thread
    return ServerLogins(node.reactor, node.config, node.current_image, router, lambda: node.cluster_id, names, beside)


def _log_refused(reason: str) -> None:
    log.info("An OAuth token is refused: reason=%s", reason)
