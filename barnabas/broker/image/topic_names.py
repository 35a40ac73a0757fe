"""Topic names: validation and collisions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import TOPIC_NAME_LENGTH_MAX

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def validate_topic_name(name: str) -> None:
    """Raises BrokerError(INVALID_TOPIC_EXCEPTION) unless `name` is 1 to 249 of ASCII letters, digits, '.', '_' and '-'."""
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


class Collisions:
    """Topics whose names differ only in '.' and '_', which metric names do not distinguish: refused, as in Kafka."""

    def __init__(self, existing: Iterable[str]) -> None:
        self._existing = existing
        self._folded: dict[str, str] | None = None

    def topic(self, name: str) -> str | None:
        """The first topic whose name collides with `name`, else None."""
        if "." not in name and "_" not in name:
            return None
        if self._folded is None:
            self._folded = {}
            for other in self._existing:
                if "." in other or "_" in other:
                    self._folded.setdefault(other.replace(".", "_"), other)
        found = self._folded.get(name.replace(".", "_"))
        return None if found == name else found
