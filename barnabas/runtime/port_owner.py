"""Owner of a port or lock, for error messages: from /proc on Linux, else POSIX. None where unknown."""

from __future__ import annotations

import os
import struct
import sys

_COMMAND_CHARS_MAX = 200
_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
# struct flock: type, whence, start, length, pid; elsewhere the order differs: start, length, pid, type, whence
_FLOCK = "hhqqi4x" if sys.platform == "linux" else "qqihh"


def described(pid: int) -> str:
    command = command_of(pid)
    return f"process {pid}" + (f" ({command})" if command else "")


def command_of(pid: int) -> str | None:
    """Command line, without control characters and of limited length, or None."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4 * _COMMAND_CHARS_MAX)
    except OSError:
        return None
    decoded = raw.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    text = "".join([each if each.isprintable() else "?" for each in decoded])
    return text if len(text) <= _COMMAND_CHARS_MAX else text[: _COMMAND_CHARS_MAX - 1] + "…"


def lock_holder(fd: int) -> int | None:
    """Pid of the process that holds a POSIX lock on an open file."""
    import fcntl  # Windows has none, and no such locks

    asked = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    ordered = asked if sys.platform == "linux" else (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(_FLOCK, *ordered))
        fields = struct.unpack(_FLOCK, answer)
    except (OSError, struct.error):
        return None
    kind, pid = (fields[0], fields[4]) if sys.platform == "linux" else (fields[3], fields[2])
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def port_holder(port: int) -> int | None:
    """Pid of a process that listens on a TCP port of this machine."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening(f"/proc/net/{table}", port)}
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                descriptors = os.scandir(f"/proc/{name}/fd")
            except OSError:
                continue  # it has ended, or belongs to another user
            with descriptors:
                if any(_target(each.path) in wanted for each in descriptors):
                    return int(name)
    return None


def _listening(table: str, port: int) -> list[str]:
    try:
        with open(table) as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENS and row[1].endswith(f":{port:04X}")]


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
