"""ProbeResult: the result of a probe of a listener (`peers.probe`), for `controller/suspicion`."""

from __future__ import annotations

from enum import Enum


class ProbeResult(Enum):
    """Whether a process listens at the address."""

    REFUSED = "refused"  # the machine answers that nothing listens
    ACCEPTED = "accepted"
    UNREACHABLE = "unreachable"  # no answer, no route or no such name: nothing is known about the process
