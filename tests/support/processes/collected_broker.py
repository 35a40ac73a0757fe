"""`barnabas` whose cyclic garbage collector runs at SIGUSR1 only, and tells what it found.

Called as `python -m tests.support.processes.collected_broker serve …`, with the name of a file in COLLECTED_GARBAGE.
SIGUSR1 collects everything that is unreachable and replaces the file by one JSON object: type or name of function → how
many.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from types import CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

VARIABLE: Final = "COLLECTED_GARBAGE"
NEVER: Final = 1_000_000_000


def collected(pid: int, path: Path) -> dict[str, int]:
    """What the collector of that broker finds now, by type or name of function."""
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    ends = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < ends, "the broker does not collect its garbage"
        time.sleep(0.01)
    found: dict[str, int] = json.loads(path.read_text())
    return found


def _name(garbage: object) -> str:
    if isinstance(garbage, FunctionType | MethodType | GeneratorType | CoroutineType):
        return garbage.__qualname__
    return type(garbage).__qualname__


def _collect(*_: Any) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(map(_name, gc.garbage))
    gc.garbage.clear()
    gc.collect()  # frees them
    path = Path(os.environ[VARIABLE])
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(dict(found.most_common())))
    unfinished.replace(path)


def main() -> None:
    """The `barnabas` command, without collections but those."""
    from barnabas.cli import main as cli
    from barnabas.runtime import memory

    gc.set_threshold(NEVER)
    memory.freeze_survivors = lambda: None
    gc.freeze = lambda: None  # what is frozen is not found
    signal.signal(signal.SIGUSR1, _collect)
    cli.main()


if __name__ == "__main__":
    main()
