"""Ports of a cluster, reserved by bound sockets that never listen: connections are refused as for a broker that is down. The broker binds beside them
with SO_REUSEADDR.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

from barnabas.testing.errors import KitError

HOST = "127.0.0.1"
PORT_MAX = 65_535


def checked_admin_port(port: object) -> int:
    """The port of the admin port. Raises KitError unless it is one, or 0."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= PORT_MAX:
        raise KitError(f"admin_port={port!r}: a port of {HOST}, 1 to {PORT_MAX}, or 0 for a free one")
    return port


class ReservedPorts:
    """Ports on 127.0.0.1.

    Args:
        count: number of ports.
        first: the first of `count` neighbouring ports; 0 takes any free ones.

    Raises KitError: `first` is out of range, or a port is in use.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        if first and not 0 < first <= PORT_MAX - count + 1:
            raise KitError(f"port={first}: {count} ports from there are not all within 1 to {PORT_MAX}")
        self._sockets: list[socket.socket] = []
        self._owner = os.getpid()
        try:
            for position in range(count):
                self._sockets.append(_bound(first + position if first else 0))
        except BaseException:
            self.release()
            raise
        self.numbers = [each.getsockname()[1] for each in self._sockets]
        if sys.platform != "linux":  # elsewhere a second socket cannot bind beside the first one
            self.release()

    def release(self) -> None:
        """Gives the ports back."""
        for each in self._sockets:
            each.close()
        self._sockets = []


def _bound(port: int) -> socket.socket:
    holder = socket.socket()
    try:
        if port:
            # A port that a closed connection of an earlier broker still occupies is free; one that another socket listens on is not.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        holder.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            why = "is in use" if error.errno == errno.EADDRINUSE else "needs more rights"
            raise KitError(f"port {port} on {HOST} {why}: choose another one, or port=0 for a free one") from None
        raise
    return holder
