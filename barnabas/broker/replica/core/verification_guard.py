"""VerificationGuard: proof that an append waited for the verification of its transaction (KIP-890)."""

from __future__ import annotations

from typing import NamedTuple


class VerificationGuard(NamedTuple):
    """A verification in progress, and the leader epoch in which it began."""

    verification: object
    leader_epoch: int
