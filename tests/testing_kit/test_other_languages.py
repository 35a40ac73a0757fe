"""The recipes in Go and Node pass: they start Kafka by `barnabas up --lab` and set faults over HTTP.

Skipped where the language or its packages are missing; a test of the suite downloads nothing. The soak downloads them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.process]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "testing"
SECONDS_MAX = 540
DOWNLOAD_SECONDS_MAX = 300

# language → (program, what finds out offline whether the packages are there, what downloads them, the tests, that they ran)
RECIPES = {
    "go": (
        "go",
        ["go", "list", "-deps", "-test", "./..."],
        ["go", "mod", "download"],
        ["go", "test", "-v", "-count=1", "./..."],
        "--- PASS: TestACommitWhoseAnswerIsLostCountsOnce",
    ),
    "node": (
        "node",
        ["node", "--input-type=module", "--eval", "import 'kafkajs'"],
        ["npm", "ci", "--no-audit", "--no-fund"],
        ["node", "--test", "--test-reporter=tap"],
        "ok 1 - an order whose acknowledgement is lost counts once",
    ),
}


def run(command: list[str], folder: Path, seconds: float, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {
        **os.environ,
        "BARNABAS": f"{sys.executable} -m barnabas",
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, env=given)


def check(language: str, folder: Path, **environment: str) -> None:
    _, _, _, tests, passed = RECIPES[language]
    done = run(tests, folder, SECONDS_MAX, **environment)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert passed in done.stdout


@pytest.mark.parametrize("language", RECIPES)
def test_a_recipe(language: str) -> None:
    program, known, download, _, _ = RECIPES[language]
    folder = EXAMPLES / language
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    if run(known, folder, SECONDS_MAX, GOPROXY="off").returncode:
        pytest.skip(f"its packages are not here: run `{' '.join(download)}` in {folder.relative_to(ROOT)}")
    check(language, folder, GOPROXY="off")


@pytest.mark.soak
@pytest.mark.parametrize("language", RECIPES)
def test_a_recipe_with_downloaded_packages(language: str, tmp_path: Path) -> None:
    program, _, download, _, _ = RECIPES[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    folder = tmp_path / language
    shutil.copytree(EXAMPLES / language, folder, ignore=shutil.ignore_patterns("node_modules"))
    downloaded = run(download, folder, DOWNLOAD_SECONDS_MAX)
    if downloaded.returncode:
        pytest.skip(f"the packages cannot be downloaded: {downloaded.stderr[-300:]}")
    check(language, folder)
