"""OAuth client assertions (RFC 7523), from a file or signed with a private key. Blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from barnabas.protocol.oauth import TokenNotGiven
from barnabas.protocol.oauth_settings import Assertion

_FILE_BYTES_MAX: Final = 1024 * 1024


def assertion_text(assertion: Assertion, now_s: int, new_id: str) -> str:
    """The assertion, with claims of the settings, then of the template, then iat, exp, nbf and jti, as in Kafka.

    `now_s` is in seconds since 1970, `new_id` is for jti. Raises TokenNotGiven for an unusable file.
    """
    if assertion.file is not None:
        text = _content("file", assertion.file).decode(errors="replace").strip()
        if text.count(".") != 2:
            raise TokenNotGiven(
                "sasl.oauthbearer.assertion.file contains no assertion, which has three parts with dots between"
            )
        return text
    header: dict[str, Any] = {}
    claims: dict[str, Any] = dict(assertion.claims)
    if assertion.template_file is not None:
        template = _template(assertion.template_file)
        header |= template.get("header") or {}
        claims |= template.get("payload") or {}
    claims |= {"iat": now_s, "exp": now_s + assertion.expires_s, "nbf": now_s - assertion.not_before_s}
    if assertion.has_id:
        claims["jti"] = new_id
    return _signed(assertion, {**header, "alg": assertion.algorithm, "typ": "JWT"}, claims)


def _signed(assertion: Assertion, header: dict[str, Any], claims: dict[str, Any]) -> str:
    try:
        from joserfc import jwt
        from joserfc.jwk import ECKey, RSAKey
    except ImportError:
        raise TokenNotGiven("assertions need pip install 'barnabas[security]'") from None
    kind = RSAKey if assertion.algorithm == "RS256" else ECKey
    pem = _content("private.key.file", assertion.key_file)
    try:
        key = kind.import_key(pem, password=assertion.passphrase)
        return jwt.encode(header, claims, key, algorithms=[assertion.algorithm])
    except Exception as error:  # the libraries below document none; their texts may quote the key
        needs = "RSA key" if assertion.algorithm == "RS256" else "EC key of the curve P-256"
        raise TokenNotGiven(
            f"sasl.oauthbearer.assertion.private.key.file cannot be used: it must be an {needs} in PEM, and "
            f"sasl.oauthbearer.assertion.private.key.passphrase must decrypt it ({type(error).__name__})"
        ) from None


def _template(path: str) -> dict[str, Any]:
    try:
        found = json.loads(_content("template.file", path))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(n) or {}, dict) for n in ("header", "payload")):
        raise TokenNotGiven(
            "sasl.oauthbearer.assertion.template.file is no JSON object with the objects header and payload"
        )
    return found


def _content(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise TokenNotGiven(f"sasl.oauthbearer.assertion.{name} cannot be read: {error.strerror or error}") from None
