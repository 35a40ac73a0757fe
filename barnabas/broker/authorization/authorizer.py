"""Authorizer: rights of principals by the ACLs of the published image (Kafka's StandardAuthorizer).
Order: super user; nothing before the image is loaded; DENY; ALLOW; `allow.everyone.if.no.acl.found`; else denied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from barnabas.broker.api.access import CLUSTER_NAME, OPERATIONS
from barnabas.broker.api.principal import Principal
from barnabas.broker.authorization.acl_index import AclIndex, acl_keys
from barnabas.broker.config.authorizer_settings import AuthorizerSettings
from barnabas.broker.image.image import AclImage, MetadataDelta, MetadataImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import TRACE, logger
from barnabas.protocol import registry
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.work import Work, finished

CACHED_MAX: Final = 100_000  # decisions; one takes some 200 bytes
CACHED_OF_CLIENT_MAX: Final = 5_000  # decisions about one principal and host: names come from clients
CACHED_NAME_MAX: Final = 512  # characters; decisions about longer names are not cached
ANY_NAME: Final = "hardcode"  # the name that Kafka asks about first, so that super users pass whatever the ACLs say
NO_REQUEST: Final = -1  # the question is not part of a client's request

audit_log = logger("kafka.authorizer.logger")

# as Kafka's audit log writes them
_TYPE_NAMES: Final = {
    AclResourceType.TOPIC: "Topic",
    AclResourceType.GROUP: "Group",
    AclResourceType.CLUSTER: "Cluster",
    AclResourceType.TRANSACTIONAL_ID: "TransactionalId",
    AclResourceType.DELEGATION_TOKEN: "DelegationToken",
    AclResourceType.USER: "User",
}

_Question = tuple[int, int, str | None]  # operation, type, name; name None: any resource of the type


class Ruling(NamedTuple):
    """A decision and its reason.

    Attributes:
        acl: the deciding ACL or None.
        super_user: whether the principal is a super user.
    """

    allowed: bool
    acl: AclImage | None = None
    super_user: bool = False

    @property
    def rule(self) -> str:
        """The rule as in Kafka's audit log."""
        if self.super_user:
            return "SuperUser"
        if self.acl is None:
            return "DefaultAllow" if self.allowed else "DefaultDeny"
        acl = self.acl
        return (
            f"MatchingAcl(acl=StandardAcl[resourceType={AclResourceType(acl.resource_type).name}, "
            f"resourceName={acl.resource_name}, patternType={PatternType(acl.pattern_type).name}, "
            f"principal={acl.principal}, host={acl.host}, operation={AclOperation(acl.operation).name}, "
            f"permissionType={AclPermission(acl.permission_type).name}])"
        )


SUPER_USER: Final = Ruling(True, super_user=True)
DEFAULT_ALLOW: Final = Ruling(True)
DEFAULT_DENY: Final = Ruling(False)


class Authorizer:
    """The authorizer of a node. It caches up to CACHED_MAX decisions, and drops them when ACLs change.

    Args:
        loaded: whether the published image holds everything committed before the node started.

    Attributes:
        index: ACLs of the published image.
        generation: changes whenever the cached decisions are dropped.
    """

    def __init__(self, settings: AuthorizerSettings, loaded: Callable[[], bool]) -> None:
        self.settings = settings
        self.index = AclIndex()
        self.generation = 0
        self._loaded = loaded
        self._is_loaded = False
        self._next: tuple[MetadataImage, AclIndex] | None = None  # for the image that is published next
        self._cached: dict[tuple[str, str], dict[_Question, Ruling]] = {}
        self._cached_count = 0  # decisions and clients, since `generation`
        self._image = MetadataImage()

    # --- images -----------------------------------------------------------------------------------------------------

    def follow(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        if delta.acls:
            self._next = image, (yield from self.index.changed(self._image.acls, image.acls, delta.acls))

    def on_image(self, _former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.acls:
            if self._next is not None and self._next[0] is image:
                self.index = self._next[1]
            else:
                self.index = finished(self.index.changed(self._image.acls, image.acls, delta.acls))
            self._next = None
            self._drop_cached()
        self._image = image

    def fixed(self) -> Authorizer:
        """The authorizer as of now, with a cache of its own."""
        found = Authorizer(self.settings, self._loaded)
        found.index = self.index
        found._is_loaded = self._is_loaded
        return found

    # --- questions --------------------------------------------------------------------------------------------------

    def access(self, principal: Principal, host: str) -> AuthorizedAccess:
        """Rights of a principal from a host, also after later changes of ACLs."""
        return AuthorizedAccess(self, principal, java_address(host))

    def explain(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> Ruling:
        """Decides about a principal ("User:alice"), with the rule and without an audit line. Raises BrokerError."""
        if principal in self.settings.super_users:
            return SUPER_USER
        if not self._is_loaded:
            self._is_loaded = self._loaded()
            if not self._is_loaded:
                raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the authorizer has not loaded the metadata yet")
        deny, allow, touched = self.index.find(acl_keys(principal, host), operation, resource_type, name)
        if deny is not None:
            return Ruling(False, deny)
        if allow is not None:
            return Ruling(True, allow)
        return DEFAULT_ALLOW if self.settings.allow_if_no_acl and not touched else DEFAULT_DENY

    def cache_of(self, client: tuple[str, str]) -> dict[_Question, Ruling]:
        known = self._cached.get(client)
        if known is None:
            self._cached_count += 1
            known = self._cached[client] = {}
        return known

    def count_cached(self) -> None:
        """A decision was cached: drops all if there are too many."""
        self._cached_count += 1
        if self._cached_count > CACHED_MAX:
            self._drop_cached()

    def _drop_cached(self) -> None:
        self.generation += 1
        for known in self._cached.values():  # idle connections still refer to them
            known.clear()
        self._cached = {}
        self._cached_count = 0


class AuthorizedAccess:
    """Rights of one principal from one host, by an authorizer."""

    __slots__ = (
        "_api_key",
        "_authorizer",
        "_by_api",
        "_cached",
        "_generation",
        "_text",
        "host",
        "principal",
        "unrestricted",
    )

    def __init__(self, authorizer: Authorizer, principal: Principal, host: str, api_key: int = NO_REQUEST) -> None:
        self.principal = principal
        self.host = host
        self.unrestricted = False
        self._authorizer = authorizer
        self._text = f"{principal.kind}:{principal.name}"
        self._api_key = api_key
        self._by_api: dict[int, AuthorizedAccess] = {}
        self._generation = -1
        self._cached: dict[_Question, Ruling] = {}

    @property
    def standing(self) -> tuple[int, str, str] | None:
        """Client and generation of these decisions; None if allowed ones are logged, as each request has its lines."""
        return None if audit_log.isEnabledFor(logging.DEBUG) else (self._authorizer.generation, self._text, self.host)

    def asked_by(self, api_key: int) -> AuthorizedAccess:
        found = self._by_api.get(api_key)
        if found is None:
            found = self._by_api[api_key] = AuthorizedAccess(self._authorizer, self.principal, self.host, api_key)
        return found

    def fixed(self) -> AuthorizedAccess:
        """As of Access."""
        return AuthorizedAccess(self._authorizer.fixed(), self.principal, self.host, self._api_key)

    def allows(
        self,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str = CLUSTER_NAME,
        *,
        log: bool = True,
        references: int = 1,
    ) -> bool:
        """Arguments as of `Access.allows`. Raises BrokerError (UNKNOWN_SERVER_ERROR) before the metadata is loaded."""
        ruling = self._ruling(operation, resource_type, name)
        if ruling.allowed:
            if audit_log.isEnabledFor(logging.DEBUG):
                self._write(ruling, operation, resource_type, name, references, asked_only=False)
            return True
        if log or audit_log.isEnabledFor(TRACE):
            self._write(ruling, operation, resource_type, name, references, asked_only=not log)
        return False

    def allows_any(self, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Whether the operation is allowed on a possible resource of this type. Raises as `allows`."""
        if self.allows(operation, resource_type, ANY_NAME, log=False, references=0):
            return True
        question = (operation, resource_type, None)
        ruling = self._cached.get(question)
        if ruling is None:
            keys = acl_keys(self._text, self.host)
            ruling = Ruling(self._authorizer.index.any_allowed(keys, operation, resource_type))
            self._keep(question, ruling)
        return ruling.allowed

    def operations(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> int:
        """The allowed operations as a bit field. Raises as `allows`."""
        found = 0
        for operation in OPERATIONS[resource_type]:
            ruling = self._ruling(operation, resource_type, name)
            if ruling.allowed:
                found |= 1 << operation
            if audit_log.isEnabledFor(TRACE):
                self._write(ruling, operation, resource_type, name, 1, asked_only=True)
        return found

    def _ruling(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> Ruling:
        authorizer = self._authorizer
        if self._generation != authorizer.generation:
            self._generation = authorizer.generation
            self._cached = authorizer.cache_of((self._text, self.host))
        question = (operation, resource_type, name)
        ruling = self._cached.get(question)
        if ruling is None:
            ruling = authorizer.explain(self._text, self.host, operation, resource_type, name)
            if len(name) <= CACHED_NAME_MAX:
                self._keep(question, ruling)
        return ruling

    def _keep(self, question: _Question, ruling: Ruling) -> None:
        if len(self._cached) >= CACHED_OF_CLIENT_MAX:
            self._cached.clear()
        self._cached[question] = ruling
        self._authorizer.count_cached()

    def _write(
        self,
        ruling: Ruling,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        references: int,
        *,
        asked_only: bool,
    ) -> None:
        """Writes a line of the audit log, as Kafka does. `asked_only`: the decision only filters a list."""
        api = registry.API.get(self._api_key)
        audit_log.log(
            TRACE if asked_only else logging.DEBUG if ruling.allowed else logging.INFO,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s"
            " with resourceRefCount = %d based on rule %s",
            self.principal,
            "Allowed" if ruling.allowed else "Denied",
            operation.name,
            self.host,
            _TYPE_NAMES.get(resource_type, "Unknown"),
            name,
            "none" if api is None else api.name,
            references,
            ruling.rule,
        )


def java_address(host: str) -> str:
    """An address as Java writes it, because ACLs compare texts: IPv6 as 0:0:0:0:0:0:0:1, IPv4 inside of IPv6 as IPv4."""
    if ":" not in host:
        return host
    address, percent, zone = host.partition("%")
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    groups = (f"{int(each, 16):x}" for each in parsed.exploded.split(":"))
    return ":".join(groups) + percent + zone
