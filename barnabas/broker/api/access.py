"""Access: permissions of one principal from one host."""

from __future__ import annotations

from typing import Final, Protocol

from barnabas.broker.api.principal import ANONYMOUS, Principal
from barnabas.protocol.acls import AclOperation, AclResourceType

CLUSTER_NAME: Final = "kafka-cluster"  # the name of the only resource of type CLUSTER


class Access(Protocol):
    """Permissions of one connection from its authentication on (`Call.access`); changed ACLs apply to the next check."""

    principal: Principal
    host: str
    unrestricted: bool  # everything is allowed and nothing is logged: a handler may skip its checks

    @property
    def standing(self) -> object:
        """While it is equal, so are all decisions, and a check need not be repeated. None: always check."""
        ...

    def asked_by(self, api_key: int) -> Access:
        """The same access for a request of this API, which the audit log names. `Call.access` does this."""
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
            log: False if the check only selects listed resources: not for the audit log.
            references: elements of the request about the resource, for the audit log.
        """
        ...

    def allows_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool: ...

    def operations(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> int:
        """Allowed operations as a bit field (bit n: operation n), for `authorized_operations` in answers."""
        ...


class FullAccess:
    """Everything is allowed: without authorizer."""

    unrestricted = True

    def __init__(self, principal: Principal = ANONYMOUS, host: str = "") -> None:
        self.principal = principal
        self.host = host

    @property
    def standing(self) -> object:
        """A handler skips its checks anyway."""
        return None

    def asked_by(self, api_key: int) -> FullAccess:
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
        return True

    def allows_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool:
        return True

    def operations(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> int:
        """All operations that exist for the type."""
        return sum(1 << operation for operation in OPERATIONS[resource_type])


_O = AclOperation
OPERATIONS: Final[dict[AclResourceType, tuple[AclOperation, ...]]] = {  # existing operations by type
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
