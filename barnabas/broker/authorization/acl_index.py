"""AclIndex: ACLs of one metadata image by type, pattern, principal and host (Kafka's StandardAuthorizerData).
A look-up does not grow with the number of ACLs. Priority: DENY of the name or a prefix, DENY of "*", ALLOW.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from barnabas.broker.image.image import AclImage
from barnabas.protocol.acls import AclOperation, AclPermission, PatternType
from barnabas.work import Steps

WILDCARD: Final = "*"
EVERY_USER: Final = "User:*"
CHANGES_PER_UNIT: Final = 2  # of work (work.Work): an ACL that is added or removed takes 3 to 6 microseconds

_O = AclOperation
_OPERATIONS: Final = tuple(int(each) for each in _O if each > _O.ALL)
_IMPLIED: Final[Mapping[int, int]] = {
    _O.READ: _O.DESCRIBE,
    _O.WRITE: _O.DESCRIBE,
    _O.DELETE: _O.DESCRIBE,
    _O.ALTER: _O.DESCRIBE,
    _O.ALTER_CONFIGS: _O.DESCRIBE_CONFIGS,
}

AclKeys: TypeAlias = tuple[tuple[str, str], tuple[str, str], tuple[str, str], tuple[str, str]]
"""The pairs of principal and host whose ACLs apply to a client."""
PatternKey: TypeAlias = tuple[int, str]  # pattern type and name


def acl_keys(principal: str, host: str) -> AclKeys:
    """Pairs of principal ("User:alice") and host whose ACLs apply to a client."""
    return (principal, host), (principal, WILDCARD), (EVERY_USER, host), (EVERY_USER, WILDCARD)


class AclMatch(NamedTuple):
    """ACLs that decide.

    Attributes:
        deny: a denying ACL; it has priority.
        allow: an allowing ACL.
        touched: whether any ACL, of any principal, is about the resource.
    """

    deny: AclImage | None
    allow: AclImage | None
    touched: bool


_UNTOUCHED: Final = AclMatch(None, None, False)


class _Grants:
    """ACLs of one pattern, principal and host.

    Attributes:
        allow, deny: the deciding ACL by operation, with implied operations.
        allowed, denied: bit fields of the operations in the ACLs (bit 2: ALL).
    """

    __slots__ = ("acls", "allow", "allowed", "denied", "deny")

    def __init__(self, acls: dict[bytes, AclImage]) -> None:
        self.acls = acls
        self.allow: dict[int, AclImage] = {}
        self.deny: dict[int, AclImage] = {}
        self.allowed = self.denied = 0

    def compile(self) -> None:
        for acl in self.acls.values():
            operation = acl.operation
            allows = acl.permission_type == AclPermission.ALLOW
            answers = self.allow if allows else self.deny
            if allows:
                self.allowed |= 1 << operation
            else:
                self.denied |= 1 << operation
            asked = _OPERATIONS if operation == _O.ALL else (operation,)
            implied = _IMPLIED.get(operation) if allows else None
            for each in asked if implied is None else (operation, implied):
                known = answers.get(each)
                if known is None or (known.operation <= operation) == allows:
                    answers[each] = acl


_Pattern: TypeAlias = dict[tuple[str, str], _Grants]  # by principal and host


def _answers(pattern: _Pattern, keys: AclKeys, operation: int) -> tuple[AclImage | None, AclImage | None]:
    """The first ACL that denies and the last one that allows, in Kafka's order of a pattern's ACLs."""
    deny: AclImage | None = None
    allow: AclImage | None = None
    for key in keys:
        grants = pattern.get(key)
        if grants is not None:
            found = grants.deny.get(operation)
            if found is not None and (deny is None or _order(found) < _order(deny)):
                deny = found
            found = grants.allow.get(operation)
            if found is not None and (allow is None or _order(found) > _order(allow)):
                allow = found
    return deny, allow


def _order(acl: AclImage) -> tuple[int, str, str]:
    return acl.operation, acl.principal, acl.host


class _TypeIndex:
    """ACLs of one resource type.

    Attributes:
        literal, prefixed: patterns by name.
        lengths: number of prefixed patterns by the length of their name, longest first.
        by_client: grants of a principal and host by pattern.
    """

    __slots__ = ("by_client", "lengths", "literal", "prefixed")

    def __init__(self, former: _TypeIndex | None) -> None:
        self.literal: dict[str, _Pattern] = {} if former is None else dict(former.literal)
        self.prefixed: dict[str, _Pattern] = {} if former is None else dict(former.prefixed)
        self.lengths: dict[int, int] = {} if former is None else dict(former.lengths)
        self.by_client: dict[tuple[str, str], dict[PatternKey, _Grants]] = (
            {} if former is None else dict(former.by_client)
        )

    def patterns(self, pattern_type: int) -> dict[str, _Pattern]:
        return self.prefixed if pattern_type == PatternType.PREFIXED else self.literal

    def matching(self, name: str) -> Iterator[_Pattern]:
        """Patterns of the name and its prefixes in Kafka's order: the longest first, literal before prefixed."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        size, prefixed = len(name), self.prefixed
        for length in self.lengths:
            if length <= size:
                found = prefixed.get(name[:length])
                if found is not None:
                    yield found


class AclIndex:
    """ACLs of one image.

    READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS, for ALLOW only. Of several
    denying ACLs the first in Kafka's order is named, of allowing ones the last.
    """

    __slots__ = ("_types", "count")

    def __init__(self) -> None:
        self._types: dict[int, _TypeIndex] = {}
        self.count = 0  # ACLs

    # --- questions --------------------------------------------------------------------------------------------------

    def find(self, keys: AclKeys, operation: int, resource_type: int, name: str) -> AclMatch:
        index = self._types.get(resource_type)
        if index is None:
            return _UNTOUCHED
        allow: AclImage | None = None
        touched = False
        for pattern in index.matching(name):
            touched = True
            deny, allowing = _answers(pattern, keys, operation)
            if deny is not None:
                return AclMatch(deny, None, True)
            allow = allowing or allow
        every = index.literal.get(WILDCARD)
        if every is not None:
            touched = True
            deny, allowing = _answers(every, keys, operation)
            if deny is not None:
                return AclMatch(deny, None, True)
            allow = allowing or allow
        return AclMatch(None, allow, touched)

    def any_allowed(self, keys: AclKeys, operation: int, resource_type: int) -> bool:
        """Whether the operation is allowed on some resource of the type, by ACLs of this operation and of ALL.

        As Authorizer.authorizeByResourceType: a DENY of "*" denies; an ALLOW of "*" allows; another ALLOW counts unless
        a DENY of the same literal name, or of a prefix of its name, covers it.
        """
        index = self._types.get(resource_type)
        if index is None:
            return False
        wanted = 1 << operation | 1 << _O.ALL
        every = index.literal.get(WILDCARD, {})
        found = [every[key] for key in keys if key in every]
        if any(grants.denied & wanted for grants in found):
            return False
        if any(grants.allowed & wanted for grants in found):
            return True
        rules = [item for key in keys for item in index.by_client.get(key, {}).items()]
        denied = {pattern for pattern, grants in rules if grants.denied & wanted}
        lengths = sorted({len(name) for pattern_type, name in denied if pattern_type == PatternType.PREFIXED})
        return any(
            grants.allowed & wanted
            and not (
                # a DENY of one literal name leaves the other names of a prefix
                (pattern[0] == PatternType.LITERAL and pattern in denied)
                or any((int(PatternType.PREFIXED), pattern[1][:length]) in denied for length in lengths)
            )
            for pattern, grants in rules
        )

    # --- changes ----------------------------------------------------------------------------------------------------

    def changed(
        self, former: Mapping[bytes, AclImage], acls: Mapping[bytes, AclImage], ids: Iterable[bytes]
    ) -> Steps[AclIndex]:
        """The index after ACLs `ids` changed, in slices; `former` are this index's ACLs by id, `acls` the next one's."""
        change = _Change(self._types)
        for number, acl_id in enumerate(ids):
            old, new = former.get(acl_id), acls.get(acl_id)
            if old is not None:
                change.replace(acl_id, old, None)
            if new is not None:
                change.replace(acl_id, new, new)
            if number % CHANGES_PER_UNIT == 0:
                yield 1
        for number, grants in enumerate(change.grants.values()):
            grants.compile()
            if number % CHANGES_PER_UNIT == 0:
                yield 1 + len(grants.acls) // 16
        index = AclIndex()
        index._types = change.types
        index.count = len(acls)
        return index


class _Change:
    """Builds the next index: copies what changes, once, and shares the rest with the former one."""

    def __init__(self, types: dict[int, _TypeIndex]) -> None:
        self.types = dict(types)
        self.grants: dict[tuple[int, PatternKey, tuple[str, str]], _Grants] = {}
        self._own_types: set[int] = set()
        self._own_patterns: set[tuple[int, PatternKey]] = set()
        self._own_clients: set[tuple[int, tuple[str, str]]] = set()

    def replace(self, acl_id: bytes, place: AclImage, acl: AclImage | None) -> None:
        kind = place.resource_type
        index = self._own_type(kind)
        pattern_key = (place.pattern_type, place.resource_name)
        pattern = self._own_pattern(kind, index, pattern_key)
        client = (place.principal, place.host)
        grants = self._own_grants(kind, index, pattern_key, pattern, client)
        if acl is not None:
            grants.acls[acl_id] = acl
            return
        grants.acls.pop(acl_id, None)
        if not grants.acls:
            self._remove_grants(kind, index, pattern_key, pattern, client)

    def _own_type(self, kind: int) -> _TypeIndex:
        if kind not in self._own_types:
            self._own_types.add(kind)
            self.types[kind] = _TypeIndex(self.types.get(kind))
        return self.types[kind]

    def _own_pattern(self, kind: int, index: _TypeIndex, key: PatternKey) -> _Pattern:
        pattern_type, name = key
        patterns = index.patterns(pattern_type)
        known = patterns.get(name)
        if known is not None and (kind, key) in self._own_patterns:
            return known
        self._own_patterns.add((kind, key))
        pattern = patterns[name] = {} if known is None else dict(known)
        if known is None and pattern_type == PatternType.PREFIXED:
            self._count_length(index, len(name), 1)
        return pattern

    def _own_grants(
        self, kind: int, index: _TypeIndex, pattern_key: PatternKey, pattern: _Pattern, client: tuple[str, str]
    ) -> _Grants:
        place = (kind, pattern_key, client)
        grants = self.grants.get(place)
        if grants is None:
            known = pattern.get(client)
            grants = self.grants[place] = _Grants({} if known is None else dict(known.acls))
            pattern[client] = grants
            self._own_client(kind, index, client)[pattern_key] = grants
        return grants

    def _own_client(self, kind: int, index: _TypeIndex, client: tuple[str, str]) -> dict[PatternKey, _Grants]:
        known = index.by_client.get(client)
        if known is None or (kind, client) not in self._own_clients:
            self._own_clients.add((kind, client))
            known = index.by_client[client] = {} if known is None else dict(known)
        return known

    def _remove_grants(
        self, kind: int, index: _TypeIndex, pattern_key: PatternKey, pattern: _Pattern, client: tuple[str, str]
    ) -> None:
        pattern_type, name = pattern_key
        del pattern[client]
        del self.grants[kind, pattern_key, client]
        by_pattern = self._own_client(kind, index, client)
        del by_pattern[pattern_key]
        if not by_pattern:
            del index.by_client[client]
        if not pattern:
            del index.patterns(pattern_type)[name]
            if pattern_type == PatternType.PREFIXED:
                self._count_length(index, len(name), -1)

    @staticmethod
    def _count_length(index: _TypeIndex, length: int, change: int) -> None:
        count = index.lengths.get(length, 0) + change
        if not count:
            del index.lengths[length]
        elif length in index.lengths:
            index.lengths[length] = count
        else:
            index.lengths = dict(sorted({**index.lengths, length: count}.items(), reverse=True))
