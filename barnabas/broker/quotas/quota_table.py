"""QuotaTable: the limits of one quota, and the one that applies to a client (Kafka's ClientQuotaManager)."""

from __future__ import annotations

from typing import Final, NamedTuple

ABSENT: Final = ""  # in place of a name: the entity has no such part; None: the default
EntityKey = tuple[str | None, str | None]  # user, client id


class ClientBound(NamedTuple):
    """A limit, and the clients that share it."""

    user: str  # of the clients that are measured together; ABSENT: every name
    client_id: str  # likewise
    limit: float  # in the unit of the quota


class QuotaTable:
    """The limits of one quota, by entity.

    The most specific applies: 1 user and client id, 2 user and default client id, 3 user, 4 default user and client id, 5 both defaults, 6
    default user, 7 client id, 8 default client id. All clients of a user share its quota without client id; every other quota counts for
    each (user, client id), or for each client id. A client without client id has only quotas of users.
    """

    __slots__ = ("_limits",)

    def __init__(self) -> None:
        self._limits: dict[EntityKey, float] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def set(self, user: str | None, client_id: str | None, limit: float | None) -> None:
        """None removes the limit."""
        if limit is None:
            self._limits.pop((user, client_id), None)
        else:
            self._limits[user, client_id] = limit

    def find(self, user: str, client_id: str) -> ClientBound | None:
        """None: no limit."""
        limits = self._limits
        if not limits:
            return None
        of_both = ((user, client_id), (user, None)) if client_id else ()
        for key in of_both:
            if key in limits:
                return ClientBound(user, client_id, limits[key])
        if (user, ABSENT) in limits:
            return ClientBound(user, ABSENT, limits[user, ABSENT])
        of_default: tuple[EntityKey, ...] = ((None, client_id), (None, None)) if client_id else ()
        for default in of_default:
            if default in limits:
                return ClientBound(user, client_id, limits[default])
        if (None, ABSENT) in limits:
            return ClientBound(user, ABSENT, limits[None, ABSENT])
        of_client: tuple[EntityKey, ...] = ((ABSENT, client_id), (ABSENT, None)) if client_id else ()
        for client in of_client:
            if client in limits:
                return ClientBound(ABSENT, client_id, limits[client])
        return None
