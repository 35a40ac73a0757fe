"""Runs of pytest with the test kit's plugin, inside of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

import barnabas.client
import barnabas.testing.thread_backend  # noqa: F401  # pytester forgets what a test imports: the next one would get second copies

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin in each run, whether the package is installed with its entry point or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\naddopts = -p barnabas.testing.plugin -p no:cacheprovider --strict-markers\n")
