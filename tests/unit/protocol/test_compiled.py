"""The hot loops compiled by mypyc: the tests of the plain ones pass with them, too; and what happens where they cannot be built.

The package is copied and built in a temporary directory, so nothing compiled is left where sources are edited.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COPIED = (
    "barnabas",
    "tests/__init__.py",
    "tests/conftest.py",
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


BUILD_REQUIREMENTS = ("setuptools", "mypy")


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has only the packages of an isolated build: these and their dependencies."""
    environment = tmp_path_factory.mktemp("isolated")
    venv.create(environment, symlinks=True)
    (folder,) = environment.glob("lib/python*/site-packages")
    wanted = list(BUILD_REQUIREMENTS)
    for name in wanted:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # a dependency for other systems
        dependencies = (re.split(r"[^\w.-]", text)[0] for text in found.requires or () if "extra ==" not in text)
        wanted += [dependency for dependency in dependencies if dependency not in wanted]
        for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))).resolve())
    return environment / "bin" / "python"


def run(
    where: Path, *arguments: str, python: str | Path = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"BARNABAS_PURE": "0"}
    return subprocess.run(
        [python, *arguments],
        cwd=where,
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def build(
    where: Path, into: str, *options: str, python: str | Path = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = ("setup.py", "-q", "build_ext", "--build-lib", into, "--build-temp", f"{into}-temp")
    return run(where, *options, *command, python=python, **environment)


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
    setup = tree / "setup.py"
    text = setup.read_text()
    assert '"opt_level": "3"' in text
    setup.write_text(text.replace('"opt_level": "3"', '"opt_level": "0"'))  # optimizing takes most of the time
    return tree


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no C compiler ({COMPILER})")
def test_the_tests_of_the_plain_loops_pass_with_the_compiled_ones(tree: Path, isolated: Path) -> None:
    built = build(tree, ".", python=isolated)
    assert built.returncode == 0, built.stdout
    loaded = (
        "import barnabas.protocol.record_codec as r, barnabas.protocol.record_walk as w, barnabas.client.producer.core.murmur2 as m;"
        "print(r.__file__, w.__file__, m.__file__)"
    )
    files = run(tree, "-c", loaded).stdout.split()
    assert [Path(file).suffix == ".py" for file in files] == [False, False, False], files
    tested = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SHARED_WITH_THE_PLAIN_ONES)
    assert tested.returncode == 0, tested.stdout
    assert "compiled" in run(tree, "-m", "barnabas.cli.main", "--version").stdout


def test_a_build_that_is_to_compile_fails_without_a_compiler(tree: Path) -> None:
    built = build(tree, "no-compiler", CC="/nonexistent/cc")
    assert built.returncode != 0
    assert "install a C compiler, or unset it for plain Python" in built.stdout


def test_a_build_that_is_to_compile_fails_without_mypy(tree: Path) -> None:
    program = "import sys, runpy; sys.modules['mypyc'] = None; del sys.argv[0]; runpy.run_path('setup.py')"
    built = build(tree, "no-mypy", "-c", program)
    assert built.returncode != 0
    assert "mypyc" in built.stdout


def test_the_package_is_plain_python_unless_asked_otherwise(tree: Path) -> None:
    assert build(tree, "pure", BARNABAS_PURE="1").returncode == 0
    assert not list(extensions(tree / "pure"))


def test_nothing_is_compiled_in_place(tree: Path) -> None:
    """There an edited source would not be what runs."""
    before = sorted(extensions(tree))
    done = run(tree, "setup.py", "-q", "build_ext", "--inplace")
    assert (done.returncode, sorted(extensions(tree))) == (0, before)
    assert "an editable install stays plain Python" in done.stdout
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
    for name in ("py.typed", "pipeline/log4j2.properties"):
        assert (tree / "installed" / "barnabas" / name).is_file(), name
