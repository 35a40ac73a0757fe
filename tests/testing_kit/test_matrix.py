"""The plugin's tests under other versions of Python and pytest, in virtual environments of their own (`make soak`).

Skipped where an interpreter is missing or the package index cannot be reached.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.process]

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS_MAX = 600
RUN_SECONDS_MAX = 900
TESTS = ("plugin", "factories", "cluster", "ends", "own_ends", "clock", "versions")
NO_FORKS = "error:.*multi-threaded, use of fork:DeprecationWarning"  # the kit starts its processes otherwise
CASES = [(python, version) for python in ("3.11", "3.12", "3.13") for version in ("8", "9")]


def interpreter(version: str) -> str | None:
    """The Python of this version: this one, one on the PATH, or one of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    return str(of_pyenv[-1]) if of_pyenv else shutil.which(f"python{version}")


@pytest.mark.parametrize(("python", "version"), CASES, ids=[f"python{p}-pytest{v}" for p, v in CASES])
def test_plugin(tmp_path: Path, python: str, version: str) -> None:
    found = interpreter(python)
    if found is None:
        pytest.skip(f"there is no Python {python} here")
    bin_folder = tmp_path / "venv" / "bin"
    subprocess.run([found, "-m", "venv", str(tmp_path / "venv")], check=True)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    packages = [f"pytest=={version}.*", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "anyio", "trio", *needed]
    installed = subprocess.run(
        [bin_folder / "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
    )
    if installed.returncode:
        pytest.skip(f"pytest {version} for Python {python} cannot be installed: {installed.stderr[-300:]}")
    tests = [str(ROOT / "tests" / "testing_kit" / f"test_{name}.py") for name in TESTS]
    run = subprocess.run(
        [
            bin_folder / "python",
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-n0",
            "-rs",
            "-W",
            NO_FORKS,
            *tests,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert "could not import" not in run.stdout, "trio and anyio are there, so their tests must run"
