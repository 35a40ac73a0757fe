"""ExistingGroup: the common part of classic and consumer groups; only reads the group."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from barnabas.broker.coordinator.groups.tables import GroupTables
from barnabas.errors import BrokerError, ErrorCode


class AnyGroup(Protocol):
    """The state of a group, whichever protocol it has."""

    group_id: str

    @property
    def is_empty(self) -> bool: ...

    def is_subscribed_to(self, topic: str) -> bool: ...


G = TypeVar("G", bound=AnyGroup)


class ExistingGroup(Generic[G]):
    """Base of the implementations of `Group` that have a group."""

    __slots__ = ("_group", "_tables")

    def __init__(self, tables: GroupTables, group: G) -> None:
        self._tables = tables
        self._group = group

    @property
    def group_id(self) -> str:
        return self._group.group_id

    @property
    def is_empty(self) -> bool:
        return self._group.is_empty

    def is_subscribed_to(self, topic: str) -> bool:
        return self._group.is_subscribed_to(topic)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
