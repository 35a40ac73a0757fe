"""Keys of what the pytest plugin keeps in pytest's stashes. `plugin.py` writes, `fixtures.py` reads."""

from __future__ import annotations

import pytest

__all__ = ["FAILED", "SEED"]

FAILED = pytest.StashKey[bool]()  # of an item: whether the test itself has failed
SEED = pytest.StashKey[int]()  # of the config: the seed that was drawn for this run
