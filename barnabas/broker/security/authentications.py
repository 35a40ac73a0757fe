"""Authentication counters of one listener, which show password guessing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Authentications:
    """Counters since the start of the node.

    Attributes:
        successful: complete logins; TLS handshakes of a listener without SASL.
        failed: failed logins and TLS handshakes.
        renewed: sessions renewed on the open connection (KIP-368).
        failed_renewals: failed ones.
    """

    successful: int = 0
    failed: int = 0
    renewed: int = 0
    failed_renewals: int = 0

    def on_failed_handshake(self) -> None:
        self.failed += 1

    def on_login(self, *, again: bool, failed: bool) -> None:
        """`again`: a renewal on an open connection."""
        if failed:
            self.failed += not again
            self.failed_renewals += again
        else:
            self.successful += not again
            self.renewed += again
