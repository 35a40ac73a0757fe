"""Resolver: looks up the addresses of host names in its own threads, so that a slow name server hardly delays other names.

Clients look up the name of a removed container or machine repeatedly, and each lookup may take the name server's timeout of many
seconds. The loop's own getaddrinfo has few threads for all names: lookups of running hosts would wait for those of removed hosts.
Here all calls for one name share a lookup, and a new lookup begins at most every AGAIN_S. If earlier addresses of the name are known,
a caller waits KNOWN_WAIT_S for new ones and then uses the earlier ones.
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
    """The addresses of a host from the system's resolver. Blocks. OSError or UnicodeError if it has none."""
    return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


class _Lookup:
    """A running lookup: its result, and when it started."""

    def __init__(self, host: str, look: Callable[[str], list[str]]) -> None:
        self._loop = asyncio.get_running_loop()
        self.began_s = self._loop.time()
        self.found: asyncio.Future[list[str]] = self._loop.create_future()
        # A daemon: the end of the process does not wait for a name server.
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
    """See the module.

    Args:
        look: returns the addresses of a host; runs in a thread.
    """

    def __init__(self, look: Callable[[str], list[str]] = look_up) -> None:
        self._look = look
        self._known: dict[str, list[str]] = {}
        self._lookups: dict[str, _Lookup] = {}

    async def addresses(self, host: str) -> list[str]:
        """The addresses of a host, the preferred one first.

        Raises:
            OSError: the name does not exist, or no name server answered.
            UnicodeError: the name is not a valid host name.
        """
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
        """The running lookup of a host; a new one if none runs or the last one started AGAIN_S ago."""
        loop = asyncio.get_running_loop()
        lookup = self._lookups.get(host)
        if lookup is None or lookup.found.get_loop() is not loop or loop.time() - lookup.began_s >= AGAIN_S:
            lookup = self._lookups[host] = _Lookup(host, self._look)
        return lookup
