"""Compiles the few hot loops with mypyc if that is asked for; all else about the package is in pyproject.toml.

By default the package is pure Python, and its wheel is one for all platforms. With BARNABAS_PURE=0 an installed package (`pip install
.`, a wheel) gets an extension module beside each file of `LOOPS`, made of that very file; Python prefers it. Without mypy or a C
compiler the package stays plain Python, and a line says so. An editable install is never compiled: what runs there is what was
edited. `barnabas --version` tells which it is.

The readme of the package is README.md with absolute links if pyproject.toml has a URL "Repository", else without links to files.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

LOOPS = ("barnabas/protocol/record_codec.py", "barnabas/protocol/record_walk.py", "barnabas/client/producer/murmur2.py")
BUILDS = {"bdist_wheel", "build_ext", "build", "install"}  # commands whose outcome is to be compiled
IN_PLACE = {"editable_wheel", "develop", "--inplace", "-i"}


def say(text: str) -> None:
    print(f"barnabas: {text}", file=sys.stderr, flush=True)  # noqa: T201 (a build script speaks to its terminal)


def compiled_loops() -> list[Extension]:
    """The extensions to build, their C written by mypyc; none where the package stays plain Python."""
    if os.environ.get("BARNABAS_PURE", "1") != "0":
        return []
    if IN_PLACE.intersection(sys.argv):
        say("an editable install: plain Python, so that what runs is what was edited")
        return []
    if not BUILDS.intersection(sys.argv):
        return []
    try:
        from mypyc.build import mypycify

        # One call a file: a group of several would put a library of its own beside the package.
        return [extension for loop in LOOPS for extension in mypycify([loop], opt_level="3", debug_level="0")]
    except (Exception, SystemExit) as error:  # mypyc ends the process where it does not understand a file
        say(f"mypyc cannot be used ({type(error).__name__}: {error}): plain Python, slower and otherwise the same")
        return []


class BuildLoops(build_ext):
    """Builds all extensions or none."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            say(f"the C compiler cannot be used ({error}): plain Python, slower and otherwise the same")


def readme() -> str:
    """README.md for the page of a package index, where links relative to the repository lead nowhere."""
    root = Path(__file__).parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project.get("urls", {}).get("Repository", "").rstrip("/")
    text = (root / "README.md").read_text(encoding="utf-8")
    if repository:
        text = re.sub(r"(!\[[^]]*\])\((?!\w+:)", rf"\1({repository}/raw/HEAD/", text)
        return re.sub(r"\]\((?!\w+:|#)", f"]({repository}/blob/HEAD/", text)
    text = re.sub(r"^!\[[^]]*\]\((?!\w+:)[^)]*\)\n+", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^]]*)\]\((?!\w+:|#)[^)]*\)", r"\1", text)


setup(
    ext_modules=compiled_loops(),
    cmdclass={"build_ext": BuildLoops},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
