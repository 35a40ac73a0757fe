"""Confirmation of what cannot be undone: a question on a terminal, or --yes."""

from __future__ import annotations

import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do it without a question.")]


def confirm(yes: bool, question: str, unchanged: str = "nothing was changed") -> None:
    """Asks on the terminal unless `yes`; only "y" or "yes" confirms. Raises WrongCall: no confirmation, or no terminal to ask on."""
    if yes:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        with interruptible() as signalled:
            print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.platform != "win32":  # whose select() takes sockets alone
                select.select([sys.stdin, signalled], [], [])  # a signal just before the wait ends it, too
            if sys.stdin.readline().strip().lower() in ("y", "yes"):
                return
    raise WrongCall(f"{unchanged}: confirm with y, or give --yes")


@contextmanager
def interruptible() -> Iterator[socket.socket]:
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
