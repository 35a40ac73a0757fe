"""Compiles the few hot loops with mypyc if that is asked for; all else about the package is in pyproject.toml.

By default the package is pure Python, and its wheel is one for all platforms. With BARNABAS_PURE=0 an installed package (`pip install
.`, a wheel) gets an extension module beside each file of `LOOPS`, made of that very file; Python prefers it. A build that cannot
compile then fails. An editable install is never compiled: it runs the edited source. `barnabas --version` shows the form.

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

LOOPS = (
    "barnabas/protocol/record_codec.py",
    "barnabas/protocol/record_walk.py",
    "barnabas/client/producer/core/murmur2.py",
)
BUILDS = {"bdist_wheel", "build_ext", "build", "install"}  # commands whose outcome is to be compiled
IN_PLACE = {"editable_wheel", "develop", "--inplace", "-i"}


def compiled_loops() -> list[Extension]:
    """The extensions to build, their C written by mypyc; none where the package stays plain Python."""
    if os.environ.get("BARNABAS_PURE", "1") != "0":
        return []
    if IN_PLACE.intersection(sys.argv):
        print("barnabas: an editable install stays plain Python", file=sys.stderr, flush=True)  # noqa: T201 (a build script)
        return []
    if not BUILDS.intersection(sys.argv):
        return []
    from mypyc.build import mypycify

    # A call for each file: a group of several would put a library of its own beside the package. Imports are not
    # followed: an isolated build has none of the packages that the rest of Barnabas imports.
    options = {"opt_level": "3", "debug_level": "0"}
    return [extension for loop in LOOPS for extension in mypycify(["--follow-imports=skip", loop], **options)]


class BuildLoops(build_ext):
    """Says what to do without a C compiler."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:
            sys.exit(
                f"barnabas: the C compiler failed ({error}). BARNABAS_PURE=0 compiles the hot loops: "
                "install a C compiler, or unset it for plain Python"
            )


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
