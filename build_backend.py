"""setuptools' build backend, which asks for mypy only where it will compile: with BARNABAS_PURE=0, and not for editable installs."""

from __future__ import annotations

import os
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (every other hook is setuptools' own)

MYPY = "mypy==2.4.*"  # as in pyproject.toml's extra `dev`


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What a build of a wheel needs beside setuptools."""
    needed: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return [*needed, MYPY] if os.environ.get("BARNABAS_PURE", "1") == "0" else needed
