"""Outlines of answers: what tests of permissions compare of them."""

from __future__ import annotations

from typing import Any

from barnabas.errors import ErrorCode

_SHOWN = {
    "name", "topic", "topic_name", "group_id", "key", "transactional_id", "resource_name", "resource_type", "config_name",
    "partition_index", "partition", "partition_id", "is_internal", "group_state", "feature", "user",
}  # fmt: skip
_CODES = {"error_code", "partition_error_code", "topic_config_error_code"}
_REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_COUNTED = {"tokens", "configs", "active_producers", "brokers", "log_dirs", "node_endpoints", "api_keys", "replicas"}


def outline(answer: Any) -> Any:
    """What a test compares of an answer: error codes, names, permitted operations, messages of refusals. Lists are sorted."""
    found: dict[str, Any] = {}
    refused = any(getattr(answer, code, 0) in _REFUSALS for code in _CODES)
    for declared in answer.FIELDS:
        name, value = declared.name, getattr(answer, declared.name)
        if name in _CODES:
            if value:
                found[name] = ErrorCode(value).name
        elif name == "error_message":
            if refused and value:  # Kafka quotes the whole request where the cluster is concerned
                found[name] = "Cluster authorization failed." if value.startswith("Request Request(") else value
        elif name.endswith("authorized_operations"):
            if value != -(2**31):
                found[name] = value
        elif name in ("nodes", "observers"):
            continue  # of the quorum: how many nodes there are
        elif name in _COUNTED and isinstance(value, list):
            found[name] = "some" if value else "none"
        elif isinstance(value, list):
            parts = [outline(each) for each in value if hasattr(each, "FIELDS")]
            if parts:
                found[name] = sorted(parts, key=repr)
        elif hasattr(value, "FIELDS"):
            if inner := outline(value):
                found[name] = inner
        elif name in _SHOWN and value not in ("", None, False):
            found[name] = value
    return found
