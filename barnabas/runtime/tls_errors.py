"""Explanations of OpenSSL errors, for logs and errors."""

from __future__ import annotations

import ssl
from typing import Final

_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate (ssl.client.auth=required)",
    "NO_SHARED_CIPHER": "no common cipher suite (ssl.cipher.suites)",
    "UNSUPPORTED_PROTOCOL": "no common TLS version (ssl.enabled.protocols)",
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS: is its listener or client PLAINTEXT?",
    "UNEXPECTED_EOF_WHILE_READING": "the other side closed the connection",
}


def explained(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    if "_ALERT_" in reason:
        return f"the other side refused: {reason.partition('_ALERT_')[2].replace('_', ' ').lower()}"
    return _REASONS.get(reason) or reason.replace("_", " ").lower() or str(error)


def end_reason(error: BaseException | None) -> str:
    """Suffix for a sentence about a connection that ended with this error: ": reason" if it was TLS, else ""."""
    return f": {explained(error)}" if isinstance(error, ssl.SSLError) else ""
