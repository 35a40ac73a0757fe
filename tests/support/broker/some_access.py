"""SomeAccess: what a test allows, as the Access of a connection; the questions are noted."""

from __future__ import annotations

from barnabas.broker.api.access import CLUSTER_NAME
from barnabas.broker.api.principal import Principal
from barnabas.protocol.acls import AclOperation, AclResourceType

Question = tuple[AclOperation, AclResourceType, str]


class SomeAccess:
    """Allows what is listed and denies the rest.

    Attributes:
        asked: the questions, in order.
        logged: those of them that are for the audit log.
        standing: None: decisions may change without a notice.
    """

    unrestricted = False
    principal = Principal("User", "alice")
    host = "127.0.0.1"

    def __init__(self, *allowed: Question) -> None:
        self.allowed = set(allowed)
        self.asked: list[Question] = []
        self.logged: list[Question] = []
        self.standing: object = None

    def fixed(self) -> SomeAccess:
        return self

    def asked_by(self, api_key: int) -> SomeAccess:
        return self

    def allows(
        self,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str = CLUSTER_NAME,
        *,
        log: bool = True,
        references: int = 1,
    ) -> bool:
        question = operation, resource_type, name
        self.asked.append(question)
        if log:
            self.logged.append(question)
        return question in self.allowed

    def allows_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool:
        return any(each[:2] == (operation, resource_type) for each in self.allowed)

    def operations(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> int:
        return sum(1 << operation for operation, kind, of in self.allowed if (kind, of) == (resource_type, name))
