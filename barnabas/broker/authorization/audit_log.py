"""AuditLog: authorizer decisions in the format of Kafka's `kafka.authorizer.logger`."""

from __future__ import annotations

import logging
from typing import Final

from barnabas.broker.api.access import Access
from barnabas.broker.authorization.authorizer import Ruling
from barnabas.loggers import TRACE, logger
from barnabas.protocol import registry
from barnabas.protocol.acls import AclOperation, AclResourceType

log = logger("kafka.authorizer.logger")

# as Kafka writes them
_TYPE_NAMES: Final = {
    AclResourceType.TOPIC: "Topic",
    AclResourceType.GROUP: "Group",
    AclResourceType.CLUSTER: "Cluster",
    AclResourceType.TRANSACTIONAL_ID: "TransactionalId",
    AclResourceType.DELEGATION_TOKEN: "DelegationToken",
    AclResourceType.USER: "User",
}


class AuditLog:
    """Writes decisions as lines."""

    def allowed_wanted(self) -> bool:
        return log.isEnabledFor(logging.DEBUG)

    def asked_wanted(self) -> bool:
        return log.isEnabledFor(TRACE)

    def write(
        self,
        access: Access,
        ruling: Ruling,
        question: tuple[AclOperation, AclResourceType, str],
        api_key: int,
        references: int,
        *,
        asked_only: bool,
    ) -> None:
        operation, resource_type, name = question
        api = registry.API.get(api_key)
        log.log(
            TRACE if asked_only else logging.DEBUG if ruling.allowed else logging.INFO,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s"
            " with resourceRefCount = %d based on rule %s",
            access.principal,
            "Allowed" if ruling.allowed else "Denied",
            operation.name,
            access.host,
            _TYPE_NAMES.get(resource_type, "Unknown"),
            name,
            "none" if api is None else api.name,
            references,
            ruling.rule,
        )
