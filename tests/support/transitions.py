"""State machines are tables: whoever has one goes where it allows, and nowhere else."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import pytest

from barnabas.errors import InvariantViolated


def follows_the_table(core: Any, table: Mapping[Any, Container[Any]], previous: Any, state: Any) -> None:
    """Put into one state, it goes to another one where the table has that, and refuses where it has not."""
    core.state = previous
    if previous in table[state]:
        core._transition(state)
        assert core.state is state
    else:
        with pytest.raises(InvariantViolated):
            core._transition(state)
