"""Principal: a client's identity, as Kafka's KafkaPrincipal."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """A type and a name."""

    kind: str
    name: str
    token: bool = False  # authenticated by a delegation token: such a client may not make or renew tokens

    def __str__(self) -> str:
        """As in ACLs: User:alice."""
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")  # of clients of listeners without authentication
