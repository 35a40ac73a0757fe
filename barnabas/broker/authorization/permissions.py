"""Permission checks of handlers: errors by type of resource, and the allowed names of one request.
As in Kafka, a request asks once for each different name, so the audit log has one line for each.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.api.access import CLUSTER_NAME, Access
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType

_REFUSALS: Final = {
    AclResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    AclResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    AclResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    AclResourceType.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
    AclResourceType.DELEGATION_TOKEN: (
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        "Delegation Token authorization failed.",
    ),
}


def refusal_of(resource_type: AclResourceType) -> BrokerError:
    """The error of a denied operation, with Kafka's message."""
    return BrokerError(*_REFUSALS[resource_type])


def check_permission(
    access: Access, operation: AclOperation, resource_type: AclResourceType, name: str = CLUSTER_NAME
) -> None:
    """Raises the error of `refusal_of` for a denied operation."""
    if not access.unrestricted and not access.allows(operation, resource_type, name):
        raise refusal_of(resource_type)


class AllowedNames:
    """Names on which one operation is allowed, asked once each.

    `log_denied` is False where a denial only hides a name from a list.
    """

    __slots__ = ("_access", "_known", "_log", "_operation", "_type", "all")

    def __init__(
        self, access: Access, operation: AclOperation, resource_type: AclResourceType, *, log_denied: bool = True
    ) -> None:
        self._access = access
        self._operation = operation
        self._type = resource_type
        self._log = log_denied
        self._known: dict[str, bool] = {}  # at most the names of one request
        self.all = access.unrestricted  # every name is allowed

    def ask(self, access: Access) -> None:
        """Asks another access from now on, for the names that are not known yet."""
        self._access = access

    def __contains__(self, name: str) -> bool:
        if self.all:
            return True
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._access.allows(self._operation, self._type, name, log=self._log)
        return known
