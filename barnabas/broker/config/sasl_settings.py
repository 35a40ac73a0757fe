"""SaslSettings: login settings of one listener, and their validation. Lookup: `listener.name.<listener>.<mechanism>.<key>`, without the
mechanism, `<key>`. No error text contains a value of a JAAS text.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final, NamedTuple, Protocol

from barnabas.broker.config.key import ConfigValue
from barnabas.broker.sasl.oauthbearer_server import BearerRules
from barnabas.broker.sasl.scram_server import SCRAM_HASHES
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.jaas import Jaas, JaasError, parse_jaas
from barnabas.protocol.kerberos import GSSAPI_MECHANISM

JWKS_SCHEMES: Final = ("file", "http", "https")
SASL_PROTOCOLS: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"
PLAIN_MECHANISM: Final = "PLAIN"
BEARER_MECHANISM: Final = "OAUTHBEARER"
JAAS_CONFIG: Final = "sasl.jaas.config"
USER_OPTION: Final = "user_"  # of PlainLoginModule: user_alice="password of alice"
_PACKAGE: Final = "org.apache.kafka.common.security"
UNSECURED_HANDLER: Final = f"{_PACKAGE}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_SIGNED_HANDLERS: Final = (
    f"{_PACKAGE}.oauthbearer.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
_VALIDATOR: Final = "sasl.oauthbearer.jwt.validator.class"
_VALIDATORS: Final = tuple(f"{_PACKAGE}.oauthbearer.{name}" for name in ("DefaultJwtValidator", "BrokerJwtValidator"))
KERBEROS_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
_SERVICE_NAME: Final = "sasl.kerberos.service.name"
_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_HANDLER: Final = "sasl.server.callback.handler.class"
_MODULES: Final[Mapping[str, str]] = {
    PLAIN_MECHANISM: f"{_PACKAGE}.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM_HASHES, f"{_PACKAGE}.scram.ScramLoginModule"),
    BEARER_MECHANISM: f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
    GSSAPI_MECHANISM: KERBEROS_MODULE,
}


class KerberosService(NamedTuple):
    """A node's own Kerberos account."""

    keytab: str  # path
    principal: str  # SERVICE/HOST@REALM
    service_name: str  # first component of all brokers' principals


class SaslConfig(Protocol):
    """The configuration of a node, as logins read it."""

    @property
    def static(self) -> Mapping[str, str]: ...

    @property
    def cluster_default(self) -> Mapping[str, str]: ...

    @property
    def dynamic(self) -> Mapping[str, str]: ...

    def listener_value(self, listener: str, name: str) -> ConfigValue: ...


class SaslSettings:
    """Login settings of one listener."""

    def __init__(self, config: SaslConfig, listener: str) -> None:
        self._config = config
        self.listener = listener
        self._parsed: dict[str, tuple[str, Jaas]] = {}  # by mechanism: the text and what it says
        self._users: tuple[Jaas | None, dict[str, str]] = (None, {})  # of PLAIN: its login module and users

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """In upper case, as in Kafka."""
        value = self._config.listener_value(self.listener, ENABLED_MECHANISMS)
        return tuple(each.upper() for each in value) if isinstance(value, tuple) else ()

    def value(self, mechanism: str, name: str) -> ConfigValue:
        config = self._config
        mine = f"{mechanism.lower()}.{name}"
        prefixed = f"listener.name.{self.listener.lower()}.{mine}"
        layers = (config.dynamic, config.cluster_default, config.static)
        is_set = any(prefixed in layer for layer in layers)
        return config.listener_value(self.listener, mine if is_set else name)

    def number(self, mechanism: str, name: str) -> int:
        value = self.value(mechanism, name)
        return value if isinstance(value, int) else 0

    def jaas(self, mechanism: str) -> Jaas | None:
        """None if not set. Raises BrokerError(INVALID_CONFIG) if malformed."""
        key = self.jaas_key(mechanism)
        value = self.value(mechanism, JAAS_CONFIG)
        if not isinstance(value, str) or not value:
            return None
        before = self._parsed.get(mechanism)
        if before is not None and before[0] == value:
            return before[1]
        try:
            jaas = parse_jaas(value)
        except JaasError as error:
            raise _invalid(key, str(error)) from None
        self._parsed[mechanism] = (value, jaas)
        return jaas

    def plain_users(self) -> Mapping[str, str]:
        """Passwords by user; empty if the JAAS text is malformed, which a start refuses."""
        try:
            jaas = self.jaas(PLAIN_MECHANISM)
        except BrokerError:
            return {}
        if jaas is None:
            return {}
        if self._users[0] is not jaas:
            self._users = (
                jaas,
                {name[len(USER_OPTION) :]: password for name, password in filter(_is_user, jaas.options.items())},
            )
        return self._users[1]

    @property
    def unsecured(self) -> bool:
        """Whether unsigned tokens are accepted: only with Kafka's unsecured handler class."""
        return self.value(BEARER_MECHANISM, "sasl.server.callback.handler.class") == UNSECURED_HANDLER

    @property
    def keys_url(self) -> str | None:
        """Of the keys that sign OAuth tokens."""
        value = self.value(BEARER_MECHANISM, "sasl.oauthbearer.jwks.endpoint.url")
        return value if isinstance(value, str) and value else None

    def bearer_rules(self) -> BearerRules:
        if self.unsecured:
            jaas = self.jaas(BEARER_MECHANISM)
            options = jaas.options if jaas is not None else {}
            skew = options.get("unsecuredValidatorAllowableClockSkewMs", "0")
            return BearerRules(
                skew_ms=int(skew) if skew.isdecimal() and len(skew) < 10 else 0,
                sub_claim=options.get("unsecuredValidatorPrincipalClaimName", "sub"),
                scope_claim=options.get("unsecuredValidatorScopeClaimName", "scope"),
                required_scope=tuple(options.get("unsecuredValidatorRequiredScope", "").split()),
            )
        audience = self.value(BEARER_MECHANISM, "sasl.oauthbearer.expected.audience")
        issuer = self.value(BEARER_MECHANISM, "sasl.oauthbearer.expected.issuer")
        return BearerRules(
            issuer=issuer if isinstance(issuer, str) and issuer else None,
            audience=audience if isinstance(audience, tuple) else (),
            skew_ms=1_000 * self.number(BEARER_MECHANISM, "sasl.oauthbearer.clock.skew.seconds"),
            sub_claim=str(self.value(BEARER_MECHANISM, "sasl.oauthbearer.sub.claim.name")),
            scope_claim=str(self.value(BEARER_MECHANISM, "sasl.oauthbearer.scope.claim.name")),
            signed=True,
        )

    def kerberos_service(self) -> KerberosService:
        """For GSSAPI. Raises BrokerError(INVALID_CONFIG) if an option or a setting is missing."""
        key = self.jaas_key(GSSAPI_MECHANISM)
        jaas = self.jaas(GSSAPI_MECHANISM)
        if jaas is None:
            is_default = ENABLED_MECHANISMS not in self._config.static
            why = f" (GSSAPI is the default of {ENABLED_MECHANISMS}). {self._example()}" if is_default else ""
            raise _invalid(key, f"it is not set, so no client could log in by GSSAPI{why}. {self._kerberos_example()}")
        options = jaas.options
        if options.get("useKeyTab", "").lower() != "true":
            raise _invalid(key, f"a broker needs useKeyTab=true. {self._kerberos_example()}")
        for name in ("keyTab", "principal"):
            if not options.get(name):
                raise _invalid(key, f"it has no {name}. {self._kerberos_example()}")
        named = self.value(GSSAPI_MECHANISM, _SERVICE_NAME)
        found = {each for each in (named, options.get("serviceName")) if isinstance(each, str) and each}
        if not found:
            raise _invalid(_SERVICE_NAME, f"it is not set. {self._kerberos_example()}")
        if len(found) > 1:
            raise _invalid(_SERVICE_NAME, f"it differs from serviceName in {key}. {self._kerberos_example()}")
        return KerberosService(options["keyTab"], options["principal"], found.pop())

    def kerberos_rules(self) -> tuple[str, ...]:
        value = self.value(GSSAPI_MECHANISM, "sasl.kerberos.principal.to.local.rules")
        return tuple(map(str, value)) if isinstance(value, tuple) else ()

    def check(self) -> None:
        """Refuses settings with which no client could log in. Raises BrokerError(INVALID_CONFIG), with the key and what works."""
        if not self.mechanisms:
            raise _invalid(
                ENABLED_MECHANISMS,
                f"listener {self.listener} uses SASL and enables no mechanism that is served. {self._example()}",
            )
        for mechanism in self.mechanisms:
            self._check_mechanism(mechanism)
        if JAAS_CONFIG in self._config.static:
            raise _invalid(JAAS_CONFIG, f"a broker needs it with the listener and the mechanism. {self._example()}")

    def check_between_nodes(self, key: str) -> None:
        """Refuses inter-node logins by a mechanism that the listener does not enable, as Kafka does. Raises BrokerError(INVALID_CONFIG)."""
        mechanism = str(self._config.listener_value(self.listener, key) or "")
        if mechanism.upper() not in self.mechanisms:
            enabled = ",".join(self.mechanisms)
            default = "," if key in self._config.static else ", the default,"
            raise _invalid(
                key,
                f"other nodes log in at listener {self.listener} by {mechanism}{default} which {ENABLED_MECHANISMS}={enabled} does not "
                f"have. A working line is: {key}={self.mechanisms[0]}",
            )

    def _check_mechanism(self, mechanism: str) -> None:
        module = _MODULES.get(mechanism)
        if module is None:
            known = ", ".join(_MODULES)
            raise _invalid(ENABLED_MECHANISMS, f"{mechanism[:80]} is not served; served are {known}. {self._example()}")
        jaas = self.jaas(mechanism)
        if jaas is not None and jaas.module != module:
            example = self._kerberos_example() if mechanism == GSSAPI_MECHANISM else self._example()
            raise _invalid(self.jaas_key(mechanism), f"the login module of {mechanism} is {module}. {example}")
        if mechanism == BEARER_MECHANISM:
            self._check_bearer()
        if mechanism == GSSAPI_MECHANISM:
            self.kerberos_service()
        if mechanism == PLAIN_MECHANISM and (jaas is None or not any(map(_is_user, jaas.options.items()))):
            raise _invalid(self.jaas_key(mechanism), f"it names no user, so no client could log in. {self._example()}")

    def _check_bearer(self) -> None:
        """Refuses OAUTHBEARER without a way to check tokens."""
        handler = self.value(BEARER_MECHANISM, "sasl.server.callback.handler.class")
        if handler and handler != UNSECURED_HANDLER and handler not in _SIGNED_HANDLERS:
            raise _invalid(
                _HANDLER, f"Java classes are not loaded; known are {UNSECURED_HANDLER}, {_SIGNED_HANDLERS[0]}"
            )
        if self.value(BEARER_MECHANISM, "sasl.oauthbearer.jwt.validator.class") not in _VALIDATORS:
            raise _invalid(_VALIDATOR, f"Java classes are not loaded; known are {', '.join(_VALIDATORS)}")
        url, unsecured = self.keys_url, self.unsecured
        if url is not None and unsecured:
            raise _invalid(_HANDLER, f"unsecured tokens are accepted although {_URL} is set: remove one of them")
        if unsecured:
            return
        if url is None:
            raise _invalid(
                _URL,
                f"it is not set, so no token could be checked. A working block is: {ENABLED_MECHANISMS}=OAUTHBEARER and "
                f"{_URL}=https://HOST/PATH/keys and sasl.oauthbearer.expected.audience=NAME. Kafka would accept tokens without a "
                f"signature here; for a test, allow them by {_HANDLER}={UNSECURED_HANDLER}",
            )
        if url.partition("://")[0] not in JWKS_SCHEMES:
            raise _invalid(_URL, f"write {'://…, '.join(JWKS_SCHEMES)}://…")
        if find_spec("joserfc") is None:
            raise _invalid(_URL, "signatures need pip install 'barnabas[security]'")

    def jaas_key(self, mechanism: str) -> str:
        return f"listener.name.{self.listener.lower()}.{mechanism.lower()}.{JAAS_CONFIG}"

    def _example(self) -> str:
        return (
            f"A working block is: {ENABLED_MECHANISMS}=PLAIN and {self.jaas_key(PLAIN_MECHANISM)}="
            f'{_MODULES[PLAIN_MECHANISM]} required user_NAME="PASSWORD"; '
            f"or: {ENABLED_MECHANISMS}=SCRAM-SHA-256, whose users are in the metadata log"
        )

    def _kerberos_example(self) -> str:
        return (
            f"A working block for Kerberos is: {ENABLED_MECHANISMS}=GSSAPI and {_SERVICE_NAME}=kafka and {self.jaas_key(GSSAPI_MECHANISM)}="
            f'{KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab="/etc/kafka.keytab" principal="kafka/HOST@REALM";'
        )


def _is_user(option: tuple[str, str]) -> bool:
    """Empty names and passwords cannot log in."""
    name, password = option
    return name.startswith(USER_OPTION) and name != USER_OPTION and password != ""


def _invalid(key: str, wrong: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, f"Invalid value for configuration {key}: {wrong}")
