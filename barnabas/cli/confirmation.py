"""Questions on a terminal: a confirmation of what cannot be undone, or --yes, and a password."""

from __future__ import annotations

import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do it without a question.")]


def confirm(yes: bool, question: str, unchanged: str = "nothing was changed") -> None:
    """Asks on the terminal unless `yes`; only "y" or "yes" confirms. Raises WrongCall: no confirmation, or no terminal to ask on."""
    if yes:
        return
    if sys.stdin.isatty() and sys.stderr.isatty() and answer(f"{question} [y/N] ").strip().lower() in ("y", "yes"):
        return
    raise WrongCall(f"{unchanged}: confirm with y, or give --yes")


def answer(question: str, *, hidden: bool = False) -> str:
    """Asks on the terminal, which does not show a hidden answer. Returns its line; empty at the end of the input."""
    if hidden and sys.platform == "win32":
        import getpass

        return getpass.getpass(question) + "\n"
    with _interruptible() as signalled, _hidden_input() if hidden else nullcontext():
        print(question, end="", file=sys.stderr, flush=True)
        if sys.platform != "win32":  # whose select() takes sockets alone
            select.select([sys.stdin, signalled], [], [])  # a signal just before the wait ends it, too
        return sys.stdin.readline()


@contextmanager
def _hidden_input() -> Iterator[None]:
    """The terminal does not show what is typed. Drops what was typed before."""
    import termios  # not on Windows

    before = termios.tcgetattr(sys.stdin)
    without_echo = before.copy()
    without_echo[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, without_echo)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)
        print(file=sys.stderr)


@contextmanager
def _interruptible() -> Iterator[socket.socket]:
    """Ctrl-C raises KeyboardInterrupt, and SIGTERM ends the process, while it waits for the terminal and the event loop does not run.

    A signal makes the socket readable.
    """
    signalled, sender = socket.socketpair()
    sender.setblocking(False)
    # The loop does not hear of the signal: it would cancel the task that closes the connections after KeyboardInterrupt.
    wakeup = signal.set_wakeup_fd(sender.fileno())
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with signalled, sender:
        try:
            yield signalled
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
