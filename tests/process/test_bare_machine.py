"""The commands of the README on a machine that has only Python, make and git: no compiler, no Kerberos, no Java."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.processes.composed import NEEDS_DOCKER, ROOT, base_image

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(7200), *NEEDS_DOCKER]

PREPARE = "apt-get update -q && apt-get install -q -y --no-install-recommends make git"
CLONE = "git config --global --add safe.directory '*' && git clone -q /checkout /clone && cd /clone"


@pytest.mark.parametrize("target", ["check", "demo", "demo-spark", "test"])
def test_a_command_of_the_readme(tmp_path: Path, target: str) -> None:
    script = f"({PREPARE}) >/tmp/prepare 2>&1 || {{ tail /tmp/prepare; exit 77; }}; {CLONE} && make {target}"
    command = ["docker", "run", "--rm", "--init", "--network", "host", "--volume", f"{ROOT}:/checkout:ro"]
    with (tmp_path / "output").open("w+") as output:
        code = subprocess.run([*command, base_image(), "bash", "-c", script], stdout=output, stderr=output).returncode
        output.seek(0)
        said = output.read()
    if code == 77:
        pytest.skip(f"no packages of Debian can be had: {said}")
    assert code == 0, said[-20_000:]
