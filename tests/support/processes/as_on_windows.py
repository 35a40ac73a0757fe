"""Runs Python as if on Windows, as far as a POSIX machine can pretend: `as_on_windows.py import | run PROGRAM ARG…`.

Modules that Windows does not have (fcntl, resource, pwd, …) and uvloop cannot be imported, names of os, signal and socket that
it does not have are gone, `sys.platform` is "win32", and a loop takes no signal handlers. The standard library and other packages
are imported before: they would load parts of Windows. Not covered: the Proactor loop, paths, and what sockets do there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import importlib.abc
import logging.handlers
import multiprocessing
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

import construct
import cramjam
import crc32c
import cyclopts
import rich.console
import rich.live
import rich.progress
import rich.prompt
import rich.table

LOADED = (concurrent.futures, logging.handlers, multiprocessing, subprocess, tempfile, construct, crc32c, cramjam)
LOADED_TOO = (cyclopts, rich.console, rich.live, rich.progress, rich.prompt, rich.table)

MODULES = {
    "fcntl",
    "resource",
    "uvloop",
    "pwd",
    "grp",
    "termios",
    "tty",
    "pty",
    "readline",
    "syslog",
    "posix",
    "curses",
}
NAMES = {
    os: "pread pwrite preadv pwritev sendfile fork forkpty getuid geteuid getgid getegid killpg getpgid setpgid setsid statvfs "
    "fstatvfs fdatasync posix_fadvise posix_fallocate sysconf waitid WNOHANG P_PID WSTOPPED WNOWAIT register_at_fork uname "
    "getloadavg mkfifo wait3 wait4 sched_getaffinity sched_setaffinity nice openpty pidfd_open chown fchown fchmod lchown "
    "set_blocking get_blocking O_CLOEXEC O_NONBLOCK O_DIRECTORY O_SYNC O_DSYNC",
    signal: "SIGHUP SIGKILL SIGSTOP SIGCONT SIGTSTP SIGALRM SIGPIPE SIGUSR1 SIGUSR2 SIGQUIT SIGCHLD SIGWINCH alarm "
    "setitimer getitimer ITIMER_REAL pthread_sigmask pthread_kill sigwait pause",
    socket: "SO_REUSEPORT MSG_DONTWAIT MSG_NOSIGNAL SCM_RIGHTS sethostname",
}


class _Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _no_handler(*_: Any) -> None:
    raise NotImplementedError


def pretend() -> None:
    """Makes this process look like Python on Windows."""
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Gone())
    for module, names in NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    delattr(select, "poll")  # modules that use it ask by hasattr first
    setattr(asyncio.SelectorEventLoop, "add_signal_handler", _no_handler)  # noqa: B010 (as the loops of Windows)
    sys.platform = "win32"


def import_all() -> None:
    """Imports every module, except those that need an extra."""
    import barnabas

    failed = []
    for module in pkgutil.walk_packages(barnabas.__path__, "barnabas."):
        if module.name.startswith("barnabas.pipeline") or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed.append(f"{module.name}: {error!r}")
    sys.stdout.write("\n".join(failed))


if __name__ == "__main__":
    pretend()
    if sys.argv[1] == "import":
        import_all()
    else:
        sys.argv = sys.argv[2:]
        if sys.argv[0].endswith(".py"):
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
