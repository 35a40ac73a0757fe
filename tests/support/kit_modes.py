"""How brokers of the test kit run: in threads of the test's process, or each in a process of its own."""

from __future__ import annotations

import pytest

MODES = ["thread", pytest.param("process", marks=pytest.mark.process)]
# For tests beside one that has MODES: what reaches processes by the same way is tested there by the soak.
THREADS = ["thread", pytest.param("process", marks=[pytest.mark.process, pytest.mark.soak])]
