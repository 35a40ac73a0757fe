"""Principal: who a client is, as in Kafka's KafkaPrincipal.

A value. Made by the authentication of a connection; used by the authorizer, quotas and delegation tokens.
"""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """A type and a name.

    Attributes:
        token: whether it was authenticated by a delegation token: such a client may not make or renew tokens.
    """

    kind: str
    name: str
    token: bool = False

    def __str__(self) -> str:
        """As in ACLs: User:alice."""
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")  # of clients of listeners without authentication
