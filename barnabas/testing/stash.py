"""Keys of what the pytest plugin keeps in pytest's stashes. `plugin.py` writes, `fixtures.py` reads."""

from __future__ import annotations

import pytest

FAILED = pytest.StashKey[bool]()  # of an item: whether the test itself has failed
SEED = pytest.StashKey[int]()  # of the config: the seed that was drawn for this run

# Of an item, for the audit: whether it has used a Kafka that the audit can disturb; the disturbance of its present run; what that has done.
AUDITED = pytest.StashKey[bool]()
DISTURBANCE = pytest.StashKey[str]()
DISTURBED = pytest.StashKey[tuple[list[str], str]]()
