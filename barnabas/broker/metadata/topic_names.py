"""Which topic names are legal, and which collide.

Pure functions. "." and "_" are one character in metric names, so two topics that differ in nothing else are refused, as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import TOPIC_NAME_LENGTH_MAX

__all__ = [
    "GROUP_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "METADATA_TOPIC",
    "TRANSACTION_STATE_TOPIC",
    "colliding_topic",
    "validate_topic_name",
]

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def validate_topic_name(name: str) -> None:
    """Raises BrokerError(INVALID_TOPIC_EXCEPTION) where `name` is not 1 to 249 of ASCII letters, digits, '.', '_' and '-'."""
    wrong = None
    if not name:
        wrong = "the empty string is not allowed"
    elif name in (".", ".."):
        wrong = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        wrong = f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    elif not _LEGAL.match(name):
        wrong = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if wrong is not None:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {wrong}")


def colliding_topic(name: str, existing: Iterable[str]) -> str | None:
    """A topic that differs from `name` in '.' for '_' only, else None."""
    if "." not in name and "_" not in name:
        return None
    folded = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == folded), None)
