"""What `python -m build` makes: the sdist and the pure wheel, their contents and metadata. `make soak` installs them, too."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns(
    "__pycache__", "*.egg-info", ".*_cache", ".venv", ".git", ".hypothesis", "build", "dist", "out"
)

pytest.importorskip("build", reason="the package build is not installed")


def run(*command: str | Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "BARNABAS_PURE")}
    done = subprocess.run(
        [str(each) for each in command],
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("distribution") / "source"
    shutil.copytree(ROOT, copy, ignore=IGNORED)
    return copy


@pytest.fixture(scope="module")
def dist(source: Path) -> Path:
    """The sdist, and the wheel that was built from it."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", source.parent / "dist", source)
    return source.parent / "dist"


@pytest.fixture(scope="module")
def metadata(dist: Path) -> Iterator[Message]:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
        yield HeaderParser().parsestr(wheel.read(name).decode())


def test_the_wheel_is_pure_and_has_the_package_alone(dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"barnabas"}
    assert {"barnabas/py.typed", "barnabas/pipeline/log4j2.properties"} <= set(names)
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    modules = {name for name in names if name.endswith(".py")}
    assert modules == {path.relative_to(ROOT).as_posix() for path in (ROOT / "barnabas").rglob("*.py")}


def test_the_sdist_has_what_a_packager_needs_and_no_junk(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "Makefile", "docs/client.md", "setup.py"):
        assert name in names
    for folder in ("tests", "examples", "docs", "bench"):
        missing = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and "node_modules" not in path.parts
        } - names
        assert not missing
    junk = re.compile(r"__pycache__|\.pyc$|\.so$|_cache/|node_modules|\.venv|\.git/|\.DS_Store|(?<!barnabas)\.egg-info")
    assert not [name for name in names if junk.search(name)]


def test_the_metadata_are_complete(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Author"] == "Barnabas contributors"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "exactly-once" in metadata["Keywords"].split(",")
    classifiers = metadata.get_all("Classifier", [])
    assert {"Typing :: Typed", "Framework :: AsyncIO", "Programming Language :: Python :: 3.11"} <= set(classifiers)
    assert not [each for each in classifiers if each.startswith("License ::")], "PEP 639: the expression says it"


def test_the_readme_of_the_package_has_no_relative_links(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert text.startswith("# Barnabas")
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)


def test_links_are_absolute_with_the_url_of_a_repository(source: Path) -> None:
    copy = source.parent / "with-url"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("tests", "docs", "bench", "examples"))
    project = copy / "pyproject.toml"
    project.write_text(project.read_text() + '\n[project.urls]\nRepository = "https://example.org/barnabas/"\n')
    (copy / "out").mkdir()
    program = "import os, sys; os.chdir(sys.argv[1]); sys.path.insert(0, '.'); import build_backend as backend;"
    run(sys.executable, "-c", f"{program} backend.prepare_metadata_for_build_wheel('out')", copy)
    text = next(copy.glob("out/*.dist-info/METADATA")).read_text()
    assert "](https://example.org/barnabas/blob/HEAD/docs/client.md)" in text
    assert "](https://example.org/barnabas/raw/HEAD/docs/images/" in text
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)


def test_twine_accepts_both_strictly(dist: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed")
    assert run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()).count("PASSED") == 2


@pytest.mark.soak
@pytest.mark.parametrize("what", ["wheel", "sdist", "compiled"])
def test_it_installs_in_a_fresh_environment(dist: Path, source: Path, tmp_path: Path, what: str) -> None:
    """The sdist without a C compiler; a wheel of this platform has compiled loops."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    if what == "compiled":
        run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source, BARNABAS_PURE="0")
        (chosen,) = tmp_path.glob("*.whl")
        assert not chosen.name.endswith("-any.whl")
    else:
        (chosen,) = dist.glob("*.whl" if what == "wheel" else "*.tar.gz")
    index = subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, "h11"])
    if index.returncode != 0:
        pytest.skip("no package index can be reached")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", chosen, CC="/nonexistent/cc")
    version = run(tmp_path / "venv" / "bin" / "barnabas", "--version")
    assert ("(hot loops: compiled" in version) is (what == "compiled"), version
    program = (
        "import asyncio; from barnabas.testing import Broker; from barnabas.client import Producer\n"
        "async def main(at):\n"
        "    async with Producer(bootstrap_servers=at) as p: print((await p.send_and_wait('t', b'v')).offset)\n"
        "with Broker() as kafka: asyncio.run(main(kafka.bootstrap_servers))"
    )
    assert run(python, "-c", program) == "0\n"
