"""Group membership in the classic and consumer (KIP-848) protocols, and classic assignors."""

from __future__ import annotations

from barnabas.client.group.group import RebalanceListener

__all__ = ["RebalanceListener"]
