"""Access: what one principal may do from one host.

Each connection has an Access from its authentication on; handlers ask `Call.access`. Without an authorizer it is FULL_ACCESS.
"""

from __future__ import annotations

from typing import Final, Protocol

from barnabas.broker.api.principal import ANONYMOUS, Principal
from barnabas.protocol.acls import AclOperation, AclResourceType

CLUSTER_NAME: Final = "kafka-cluster"  # the name of the only resource of type CLUSTER


class Access(Protocol):
    """What one principal may do from one host, now: a change of ACLs applies to the next question.

    Attributes:
        unrestricted: everything is allowed and nothing is logged: a handler may skip its questions.
    """

    principal: Principal
    host: str
    unrestricted: bool

    @property
    def standing(self) -> object:
        """While it is equal, so are all decisions, and a question that was answered need not be asked again. None: ask always."""
        ...

    def asked_by(self, api_key: int) -> Access:
        """The same access, for questions of a request of this API: the audit log names it. `Call.access` does this."""
        ...

    def fixed(self) -> Access:
        """The access as of now, for the worker thread: later changes of ACLs do not apply, and it shares no cache."""
        ...

    def allows(
        self,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str = CLUSTER_NAME,
        *,
        log: bool = True,
        references: int = 1,
    ) -> bool:
        """Whether the operation on this resource is allowed.

        Args:
            log: whether the decision is for the audit log; False for a question that only selects what is listed.
            references: how many elements of the request are about the resource, for the audit log.
        """
        ...

    def allows_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Whether the operation is allowed on at least one possible resource of this type."""
        ...

    def operations(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> int:
        """The allowed operations as a bit field (bit n: operation n), for `authorized_operations` in answers."""
        ...


class FullAccess:
    """Everything is allowed: there is no authorizer."""

    unrestricted = True

    def __init__(self, principal: Principal = ANONYMOUS, host: str = "") -> None:
        self.principal = principal
        self.host = host

    @property
    def standing(self) -> object:
        """None: a handler skips its questions anyway."""
        return None

    def asked_by(self, api_key: int) -> FullAccess:
        """Itself."""
        return self

    def fixed(self) -> FullAccess:
        """Itself."""
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
        """True."""
        return True

    def allows_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """True."""
        return True

    def operations(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> int:
        """All operations that exist for the type."""
        return sum(1 << operation for operation in OPERATIONS[resource_type])


_O = AclOperation
OPERATIONS: Final[dict[AclResourceType, tuple[AclOperation, ...]]] = {  # that exist for a type
    AclResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DESCRIBE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    AclResourceType.CLUSTER: (
        _O.CREATE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
        _O.ALTER,
        _O.DESCRIBE,
    ),
    AclResourceType.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    AclResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    AclResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}

FULL_ACCESS: Final = FullAccess()
