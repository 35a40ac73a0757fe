"""BearerServer: OAUTHBEARER server exchange and rules for token claims (RFC 7628, RFC 7519, KIP-255, KIP-768).
No log line or error contains a part of a token. Only `unsecured_claims` accepts unsigned tokens.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.sasl.server_mechanism import LoginFailed, LoginIdentity
from barnabas.errors import BarnabasError

if TYPE_CHECKING:
    from joserfc.jwk import GuestProtocol, KeyBase, KeySet

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_BLANKS: Final = "".join(map(chr, range(33)))  # as Java's trim()
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}  # by the first letters of an algorithm
TOKEN_LENGTH_MAX: Final = 256 * 1024
NAME_LENGTH_MAX: Final = 4_096
INVALID_TOKEN: Final = '{"status":"invalid_token"}'
ACKNOWLEDGED: Final = b"\1"

_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authorize>(?:[^\0,=]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7E \t\r\n]+\x01)*)\x01"
)


class TokenRefused(BarnabasError):
    """An invalid token. The text quotes no part of it. `unknown_key`: no key has the token's key id."""

    def __init__(self, text: str, *, unknown_key: bool = False) -> None:
        self.unknown_key = unknown_key
        super().__init__(text)


class BearerRules(NamedTuple):
    """Required claims.

    Attributes:
        issuer, audience: expected ones; none: any.
        skew_ms: allowed difference of clocks.
        required_scope: scopes that the token must have.
        signed: Kafka's rules for signed tokens: `iat` is needed and may be in the future, a name has no surrounding
            blanks, a scope that is neither text nor list counts as none, and a list with a duplicate scope is rejected.
    """

    issuer: str | None = None
    audience: tuple[str, ...] = ()
    skew_ms: int = 0
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    signed: bool = False


class BearerServer:
    """One exchange.

    Args:
        validate: returns the identity of a token at milliseconds since 1970; raises TokenRefused.
        on_refused: called with the reason of a rejected token, for the log.
    """

    def __init__(self, validate: Callable[[str, int], LoginIdentity], on_refused: Callable[[str], None]) -> None:
        self._validate = validate
        self._on_refused = on_refused
        self._refused = False
        self.identity: LoginIdentity | None = None

    def work(self, token: bytes) -> None:
        """A step is quick."""

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Responds to the token, or to the client's acknowledgement of its rejection. Raises LoginFailed."""
        if self._refused:
            raise LoginFailed(INVALID_TOKEN if token == ACKNOWLEDGED else None)
        try:
            found = _FIRST.fullmatch(token.decode("ascii")) if len(token) <= TOKEN_LENGTH_MAX else None
        except UnicodeDecodeError:
            found = None
        if found is None:
            raise LoginFailed(why="malformed first message")
        pairs = [each.partition("=")[::2] for each in found["pairs"].split("\1") if each]
        values = dict(pairs)
        scheme, _, bearer = values.get("auth", "").partition(" ")
        if len(values) != len(pairs) or scheme.lower() != "bearer" or not bearer:
            raise LoginFailed(why="no bearer token, or an extension that is there twice")
        try:
            identity = self._validate(bearer.strip(), now_ms)
        except TokenRefused as refused:
            self._refused = True
            self._on_refused(str(refused))
            return INVALID_TOKEN.encode()
        authorize = (found["authorize"] or "").replace("=2C", ",").replace("=3D", "=")
        if authorize and authorize != identity.name:
            raise LoginFailed(
                f"Authentication failed: Client requested an authorization id ({authorize}) that is different from the token's "
                f"principal name ({identity.name})"
            )
        self.identity = identity
        return b""


def unsecured_claims(token: str) -> Mapping[str, object]:
    """Claims of an unsigned token. Raises TokenRefused."""
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise TokenRefused("it is no unsecured token of three parts, the last one empty")
    header, claims = (_object(part) for part in parts[:2])
    if header.get("alg") != "none":
        raise TokenRefused("its algorithm is not none, and only unsecured tokens are accepted here")
    return claims


def signed_claims(token: str, keys: KeySet) -> Mapping[str, object]:
    """Claims of a token signed by one of the keys. Raises TokenRefused."""
    from joserfc import jwt
    from joserfc.errors import InvalidKeyIdError, JoseError

    try:
        decoded = jwt.decode(token, partial(_key_of, keys), algorithms=list(ALGORITHMS))
    except InvalidKeyIdError:
        raise TokenRefused("no signing key is the one that it names", unknown_key=True) from None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise TokenRefused(f"its signature is not valid: {type(error).__name__}") from None
    if decoded.header.get("crit") == []:
        raise TokenRefused("its list of critical extensions is empty")  # RFC 7515, 4.1.11
    return decoded.claims


def _key_of(keys: KeySet, token: GuestProtocol) -> KeyBase:
    """First fitting key, as in Kafka: a token without key id fits all of a type. Raises InvalidKeyIdError."""
    from joserfc.errors import InvalidKeyIdError

    headers = token.headers()
    name, algorithm = headers.get("kid"), headers.get("alg")
    kind = _KEY_TYPES.get(str(algorithm)[:2])
    for key in keys.keys:
        fits = key.key_type == kind and key.alg in (None, algorithm)
        if fits and name in (None, key.kid):
            return key
    raise InvalidKeyIdError()


def checked_claims(claims: Mapping[str, object], rules: BearerRules, now_ms: int) -> LoginIdentity:
    """Identity of the claims at `now_ms` (since 1970). Raises TokenRefused."""
    name = claims.get(rules.sub_claim)
    if isinstance(name, str):
        name = "" if "\0" in name else name.strip(_BLANKS) if rules.signed else name
    if not isinstance(name, str) or not name or len(name) > NAME_LENGTH_MAX:
        raise TokenRefused(f"its claim {rules.sub_claim} is no name")
    expires_at_ms = _time_ms(claims, "exp")
    if expires_at_ms is None:
        raise TokenRefused("it has no claim exp")
    if now_ms - rules.skew_ms >= expires_at_ms:
        raise TokenRefused("it has expired")
    issued_at_ms, not_before_ms = _time_ms(claims, "iat"), _time_ms(claims, "nbf")
    if issued_at_ms is None and rules.signed:
        raise TokenRefused("it has no claim iat")
    for begins_ms in (issued_at_ms, not_before_ms):
        if rules.signed and begins_ms is not None and begins_ms > expires_at_ms:
            raise TokenRefused("it ends before it begins")
    for begins_ms in (None if rules.signed else issued_at_ms, not_before_ms):
        if begins_ms is not None and begins_ms > now_ms + rules.skew_ms:
            raise TokenRefused("it is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("it has another issuer")
    if rules.audience and not set(_texts(claims.get("aud"), "aud")) & set(rules.audience):
        raise TokenRefused("it is for another audience")
    scopes = claims.get(rules.scope_claim)
    if rules.signed and not isinstance(scopes, (str, list)):
        scopes = None
    every = _texts(scopes, rules.scope_claim)
    if rules.signed and not _all_named_once(every):
        raise TokenRefused(f"its claim {rules.scope_claim} names nothing, or the same scope twice")
    scope = [part for each in every for part in each.split()]
    if not set(rules.required_scope) <= set(scope):
        raise TokenRefused("it lacks a required scope")
    return LoginIdentity(name, expires_at_ms)


def _object(part: str) -> dict[str, object]:
    try:
        value = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, Base64Error, RecursionError):
        raise TokenRefused("it is no JSON in base64") from None
    if not isinstance(value, dict):
        raise TokenRefused("it is no JSON object")
    return value


def _time_ms(claims: Mapping[str, object], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise TokenRefused(f"its claim {name} is no time")
    return int(value * 1_000)


def _all_named_once(texts: list[str]) -> bool:
    names = [each.strip(_BLANKS) for each in texts]
    return all(names) and len(set(names)) == len(names)


def _texts(value: object, name: str) -> list[str]:
    values: list[object] = value if isinstance(value, list) else [] if value is None else [value]
    texts = [each for each in values if isinstance(each, str)]
    if len(texts) != len(values):
        raise TokenRefused(f"its claim {name} is no text")
    return texts
