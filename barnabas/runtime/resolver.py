"""Resolver: host name look-ups in its own threads, so that a slow name server hardly delays other names.
The loop's getaddrinfo has few threads: look-ups of running hosts would wait for those of removed ones.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Final

from barnabas.limits import RESOLVED_HOSTS_MAX

KNOWN_WAIT_S: Final = 0.1
AGAIN_S: Final = 2.0  # between the starts of two lookups of a name, while the first one has no answer


def look_up(host: str) -> list[str]:
    """Addresses from the system's resolver. Blocks. OSError or UnicodeError without any."""
    return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


class _Lookup:
    """A running look-up and its start."""

    def __init__(self, host: str, look: Callable[[str], list[str]]) -> None:
        self._loop = asyncio.get_running_loop()
        self.began_s = self._loop.time()
        self.found: asyncio.Future[list[str]] = self._loop.create_future()
        # A daemon: the process does not wait for a name server to end.
        threading.Thread(target=self._run, args=(host, look), name=f"lookup {host}", daemon=True).start()

    def _run(self, host: str, look: Callable[[str], list[str]]) -> None:
        found: list[str] | Exception
        try:
            found = look(host)
        except (OSError, UnicodeError) as error:
            found = error
        try:
            self._loop.call_soon_threadsafe(self._end, found)
        except RuntimeError:
            return  # the loop is closed: no callers wait

    def _end(self, found: list[str] | Exception) -> None:
        if isinstance(found, Exception):
            self.found.set_exception(found)
            self.found.exception()  # marks it as retrieved, even if every caller was cancelled
        else:
            self.found.set_result(found)


class Resolver:
    """Shares look-ups of a name, at most one every AGAIN_S. After KNOWN_WAIT_S callers get earlier addresses, if known.

    `look` returns the addresses of a host; runs in a thread.
    """

    def __init__(self, look: Callable[[str], list[str]] = look_up) -> None:
        self._look = look
        self._known: dict[str, list[str]] = {}
        self._lookups: dict[str, _Lookup] = {}

    async def addresses(self, host: str) -> list[str]:
        """The addresses, the preferred one first. Raises OSError, or UnicodeError for an invalid name."""
        lookup = self._lookup(host)
        known = self._known.get(host)
        try:
            async with asyncio.timeout(None if known is None else KNOWN_WAIT_S):
                found = await asyncio.shield(lookup.found)
        except TimeoutError:
            if known is None or lookup.found.done():
                raise  # of the lookup itself
            return known
        finally:
            if lookup.found.done() and self._lookups.get(host) is lookup:
                del self._lookups[host]
        self._known.pop(host, None)
        if len(self._known) >= RESOLVED_HOSTS_MAX:
            del self._known[next(iter(self._known))]
        self._known[host] = found
        return found

    def _lookup(self, host: str) -> _Lookup:
        """The running look-up of a host; a new one if none runs or the last one started AGAIN_S ago."""
        loop = asyncio.get_running_loop()
        lookup = self._lookups.get(host)
        if lookup is None or lookup.found.get_loop() is not loop or loop.time() - lookup.began_s >= AGAIN_S:
            lookup = self._lookups[host] = _Lookup(host, self._look)
        return lookup
