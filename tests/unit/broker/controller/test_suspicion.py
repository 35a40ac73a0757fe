"""Suspicion: what the results of probes prove."""

from __future__ import annotations

import pytest

from barnabas.broker.controller.core.sessions import (
    ACCEPTED_PAUSE_MS_MAX,
    PAUSE_MS,
    PAUSE_MS_MAX,
    SILENCE_MS,
    Suspicion,
)
from barnabas.broker.peers.peer_error import ProbeResult

ACCEPTED, REFUSED, UNREACHABLE = ProbeResult.ACCEPTED, ProbeResult.REFUSED, ProbeResult.UNREACHABLE


@pytest.mark.parametrize(
    ("refused_too", "probes", "dead"),
    [
        (False, [(0, REFUSED)], False),
        (False, [(0, REFUSED), (50, REFUSED)], True),
        (False, [(0, REFUSED), (50, UNREACHABLE)], True),  # the address of a killed container vanishes
        (False, [(0, UNREACHABLE), (250, REFUSED)], True),
        (False, [(0, REFUSED), (50, ACCEPTED), (100, REFUSED)], False),
        (False, [(0, UNREACHABLE), (SILENCE_MS - 1, UNREACHABLE)], False),
        (False, [(0, UNREACHABLE), (SILENCE_MS, UNREACHABLE)], True),
        (False, [(SILENCE_MS, UNREACHABLE)], False),  # once is not enough, for this process may have stood still
        (False, [(0, ACCEPTED), (60_000, ACCEPTED)], False),
        (True, [(0, UNREACHABLE)], True),
        (True, [(0, ACCEPTED)], False),
    ],
)
def test_what_is_proof(refused_too: bool, probes: list[tuple[int, ProbeResult]], dead: bool) -> None:
    suspicion = Suspicion(0)
    verdicts = [suspicion.is_dead(result, at_ms, refused_too=refused_too) for at_ms, result in probes]
    assert verdicts == [False] * (len(probes) - 1) + [dead]


@pytest.mark.parametrize(("result", "longest_ms"), [(UNREACHABLE, PAUSE_MS_MAX), (ACCEPTED, ACCEPTED_PAUSE_MS_MAX)])
def test_pauses_grow_to_a_bound(result: ProbeResult, longest_ms: int) -> None:
    suspicion = Suspicion(0)
    pauses_ms = []
    for _ in range(8):
        suspicion.is_dead(result, 0)
        pauses_ms.append(suspicion.next_pause_ms())
    assert pauses_ms[:3] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS]
    assert pauses_ms[-1] == longest_ms


def test_a_new_controller_that_saw_no_connection_close_waits_for_silence() -> None:
    suspicion = Suspicion(0, closed=False)
    assert not suspicion.is_dead(REFUSED, 0, refused_too=True)
    assert not suspicion.is_dead(REFUSED, SILENCE_MS - 1)
    assert suspicion.is_dead(REFUSED, SILENCE_MS)
