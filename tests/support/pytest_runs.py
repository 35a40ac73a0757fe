"""Runs of pytest with the test kit's plugin, inside of a test."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import barnabas.testing

# pytester forgets what a run in this process imports: the next one would get second copies.
for each in walk_packages(barnabas.testing.__path__, "barnabas.testing."):
    import_module(each.name)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin in each run, whether the package is installed with its entry point or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT))
    pytester.makeini("[pytest]\naddopts = -p barnabas.testing.plugin -p no:cacheprovider --strict-markers\n")
