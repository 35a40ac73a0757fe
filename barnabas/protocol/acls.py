"""ACL constants: resource types, operations, pattern types and permissions, with Kafka's names and numbers."""

from __future__ import annotations

from enum import IntEnum


class AclResourceType(IntEnum):
    """Type of an ACL's resource."""

    UNKNOWN = 0
    ANY = 1  # in filters
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(IntEnum):
    """Operation that an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1  # in filters
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(IntEnum):
    """How an ACL's resource name is matched."""

    UNKNOWN = 0
    ANY = 1  # in filters: every type
    MATCH = 2  # in filters: those that match a name
    LITERAL = 3
    PREFIXED = 4


class AclPermission(IntEnum):
    """Permission type of an ACL."""

    UNKNOWN = 0
    ANY = 1  # in filters
    DENY = 2
    ALLOW = 3
