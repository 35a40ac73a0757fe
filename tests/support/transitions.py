"""State machines are tables of allowed transitions."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import pytest

from barnabas.errors import InvariantViolated


def follows_the_table(core: Any, table: Mapping[Any, Container[Any]], previous: Any, state: Any) -> None:
    """Checks that a core makes a transition if the table allows it, and else raises InvariantViolated."""
    core.state = previous
    if previous in table[state]:
        core._transition(state)
        assert core.state is state
    else:
        with pytest.raises(InvariantViolated):
            core._transition(state)
