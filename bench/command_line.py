"""`barnabas produce` and `consume` beside kcat: whole processes, in alternating pairs, against one broker.

    python bench/command_line.py [--pairs 7] [--lines 200000] [--records 1000000] [--gigabyte]

Prints the median, the lowest and the highest time of each command in seconds, and the median of the ratios of the pairs: of the time
that passes, and of the CPU time (user and system), which other work on the machine changes less. The bytecode is compiled first, as
`pip install` does it. `--gigabyte` also writes a file of 1 GB and prints the peak of the memory. kcat is a package of Debian.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import barnabas
from barnabas.testing import Broker

LINE_BYTES = 100  # with its line feed


class Took(NamedTuple):
    """How long a command has taken, from its start to its end, in seconds."""

    wall: float
    cpu: float


def took(command: Sequence[str], source: Path | None) -> Took:
    """Runs a command."""
    with open(source or os.devnull, "rb") as stdin, open(os.devnull, "wb") as null:
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdin=stdin, stdout=null, stderr=null)
        _, status, usage = os.wait4(process.pid, 0)
        ended = time.perf_counter()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return Took(ended - begun, usage.ru_utime + usage.ru_stime)


def pairs(name: str, ours: Sequence[str], theirs: Sequence[str], source: Path | None, count: int) -> None:
    """Runs both commands in turn, after one run of each to warm up, and prints a row for each kind of time."""
    found: list[tuple[Took, Took]] = []
    for number in range(count + 1):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        times = {tuple(command): took(command, source) for command in order}
        if number:
            found.append((times[tuple(ours)], times[tuple(theirs)]))
    for kind in Took._fields:
        rows = [(getattr(mine, kind), getattr(other, kind)) for mine, other in found]
        ratio = statistics.median(mine / other for mine, other in rows)
        shown = [f"{statistics.median(row):6.3f} ({min(row):.3f} to {max(row):.3f})" for row in zip(*rows, strict=True)]
        print(f"{name:28} {kind:4} barnabas {shown[0]}   kcat {shown[1]}   ratio {ratio:.2f}", flush=True)


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--gigabyte", action="store_true")
    arguments = parser.parse_args()
    kcat = shutil.which("kcat")
    if kcat is None:
        sys.exit("kcat is not installed (a package of Debian and Ubuntu)")
    compileall.compile_dir(Path(barnabas.__file__).parent, quiet=1)
    command = [sys.executable, "-m", "barnabas.cli.main"]
    with tempfile.TemporaryDirectory() as folder, Broker(mode="process", timeout=60) as broker:
        at = broker.bootstrap_servers
        subprocess.run([*command, "topic", "create", "ours", "theirs", "read", "-b", at], check=True)
        lines = Path(folder) / "lines"
        lines.write_bytes(b"".join(b"%d\t".ljust(12, b"x") % n + b"y" * 80 + b"\n" for n in range(arguments.lines)))
        one = Path(folder) / "one"
        one.write_bytes(b"line\n")
        ours, theirs = [*command, "produce", "ours", "-b", at], [kcat, "-P", "-t", "theirs", "-b", at]
        pairs("produce 1 line", ours, theirs, one, arguments.pairs)
        pairs(f"produce {arguments.lines} lines", ours, theirs, lines, arguments.pairs)
        pairs(f"produce {arguments.lines} keys", [*ours, "-K", r"\t"], [*theirs, "-K", r"\t"], lines, arguments.pairs)
        written = 0
        while written < arguments.records:
            took([*command, "produce", "read", "-b", at], lines)
            written += arguments.lines
        ours = [*command, "consume", "read", "--from-beginning", "-e", "-b", at]
        theirs = [kcat, "-C", "-t", "read", "-o", "beginning", "-e", "-q", "-b", at]
        pairs(f"consume {written} values", ours, theirs, None, arguments.pairs)
        template = ["-f", r"%k\t%s\n"]
        pairs(f"consume {written} by template", [*ours, *template], [*theirs, *template], None, arguments.pairs)
        pairs(f"consume {written} as JSON", [*ours, "--json"], [*theirs, "-J"], None, max(3, arguments.pairs // 2))
        if arguments.gigabyte:
            gigabyte(Path(folder) / "gigabyte", [*command, "produce", "ours", "-b", at])


def gigabyte(path: Path, command: Sequence[str]) -> None:
    """Writes a file of 1 GB; prints the time, and the highest memory of any command so far."""
    block = (b"z" * (LINE_BYTES - 1) + b"\n") * 10_000
    with path.open("wb") as file:
        for _ in range(1_000):
            file.write(block)
    wall = took([*command, "--file", str(path)], None).wall
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"produce 1 GB                 {wall:.1f} s; highest memory of a command {peak} MiB")


if __name__ == "__main__":
    main()
