"""The example in docs/simulation.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.simulation

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
