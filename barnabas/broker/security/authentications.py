"""Authentications: how many clients of one listener proved who they are, and how many did not.

A stranger that guesses passwords shows here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Authentications:
    """Counters of one listener since the start of the node.

    Attributes:
        successful: complete logins; TLS handshakes of a listener without SASL.
        failed: refused logins and failed TLS handshakes.
        renewed: sessions that a client has renewed on the open connection (KIP-368).
        failed_renewals: refused ones.
    """

    successful: int = 0
    failed: int = 0
    renewed: int = 0
    failed_renewals: int = 0

    def on_failed_handshake(self) -> None:
        """A TLS handshake has failed."""
        self.failed += 1

    def on_login(self, *, again: bool, failed: bool) -> None:
        """A login has ended; `again`: that of an open connection."""
        if failed:
            self.failed += not again
            self.failed_renewals += again
        else:
            self.successful += not again
            self.renewed += again
