"""Group membership in both protocols, classic and consumer (KIP-848), and the assignors of the classic one."""

from __future__ import annotations

from barnabas.client.group.group import RebalanceListener

__all__ = ["RebalanceListener"]
