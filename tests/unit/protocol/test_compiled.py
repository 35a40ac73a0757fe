"""The hot loops compiled by mypyc: the tests of the plain ones pass with them, too; and what happens where they cannot be built.

The package is copied and built in a temporary directory, so nothing compiled is left where sources are edited.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COPIED = (
    "barnabas",
    "tests/__init__.py",
    "tests/golden",
    "tests/support",
    "tests/unit",
    "setup.py",
    "build_backend.py",
    "pyproject.toml",
    "README.md",
)
SHARED_WITH_THE_PLAIN_ONES = (
    "tests/unit/protocol/test_records.py",
    "tests/unit/protocol/test_record_walk.py",
    "tests/unit/client/test_partitioning.py",
    "tests/unit/client/test_fetching.py",
)
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


def run(where: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"BARNABAS_PURE": "0"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def build(where: Path, into: str, **environment: str) -> str:
    done = run(where, "setup.py", "-q", "build_ext", "--build-lib", into, "--build-temp", f"{into}-temp", **environment)
    assert done.returncode == 0, done.stdout
    return done.stdout


def extensions(where: Path) -> Iterator[Path]:
    return where.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources."""
    tree = tmp_path_factory.mktemp("compiled")
    for name in COPIED:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))
        else:
            shutil.copy(source, target)
    return tree


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no C compiler ({COMPILER})")
def test_the_tests_of_the_plain_loops_pass_with_the_compiled_ones(tree: Path) -> None:
    build(tree, ".")
    loaded = (
        "import barnabas.protocol.record_codec as r, barnabas.protocol.record_walk as w, barnabas.client.producer.murmur2 as m;"
        "print(r.__file__, w.__file__, m.__file__)"
    )
    files = run(tree, "-c", loaded).stdout.split()
    assert [Path(file).suffix == ".py" for file in files] == [False, False, False], files
    tested = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SHARED_WITH_THE_PLAIN_ONES)
    assert tested.returncode == 0, tested.stdout
    assert "compiled" in run(tree, "-m", "barnabas.cli.main", "--version").stdout


def test_without_a_compiler_the_package_stays_plain_and_says_so(tree: Path) -> None:
    said = build(tree, "no-compiler", CC="/nonexistent/cc")
    assert "the C compiler cannot be used" in said
    assert "plain Python" in said
    assert not list(extensions(tree / "no-compiler"))


def test_the_package_is_plain_python_unless_asked_otherwise(tree: Path) -> None:
    build(tree, "pure", BARNABAS_PURE="1")
    assert not list(extensions(tree / "pure"))


def test_nothing_is_compiled_in_place(tree: Path) -> None:
    """There an edited source would not be what runs."""
    before = sorted(extensions(tree))
    done = run(tree, "setup.py", "-q", "build_ext", "--inplace")
    assert (done.returncode, sorted(extensions(tree))) == (0, before)
    assert "an editable install: plain Python" in done.stdout
    assert not list(extensions(ROOT / "barnabas")), (
        "compiled modules lie in the checkout: they run in place of its sources"
    )


def test_mypy_is_asked_for_only_where_something_is_compiled(tree: Path) -> None:
    for hook, pure, wanted in (
        ("get_requires_for_build_wheel", "0", True),
        ("get_requires_for_build_wheel", "1", False),
        ("get_requires_for_build_editable", "0", False),
    ):
        asked = run(tree, "-c", f"import build_backend; print('needs', build_backend.{hook}())", BARNABAS_PURE=pure)
        assert "needs [" in asked.stdout
        assert ("mypy==" in asked.stdout) is wanted, (hook, asked.stdout)


def test_what_is_no_python_is_installed_too(tree: Path) -> None:
    """The mark that types are complete, and what modules read."""
    done = run(tree, "setup.py", "-q", "build_py", "--build-lib", "installed", BARNABAS_PURE="1")
    assert done.returncode == 0, done.stdout
    for name in ("py.typed", "pipeline/log4j2.properties", "cli/flights/page.html"):
        assert (tree / "installed" / "barnabas" / name).is_file(), name
