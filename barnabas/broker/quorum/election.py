"""Election: counts the votes of one candidate, or pre-votes of one prospective candidate.

An election is won when a majority grants its vote, and lost when the voters that may still grant are too few for a majority. An
unreachable voter is asked again after a pause. Two candidates and a dead voter are a tie. So after a voter has refused, the candidate
does not wait for voters that are unreachable or have not answered for PATIENCE_MS: the address of a dead voter may have vanished
with it, and connecting to it takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PATIENCE_MS: Final = 200  # a later vote still counts


class Election:
    """One round of votes in one epoch; the node votes for itself.

    Attributes:
        deadline_ms: end of the election.
        retry_at_ms: set if the election is lost: time of the next one; None while it is open.
    """

    __slots__ = (
        "_ask_at",
        "_granted",
        "_missed",
        "_patience_until_ms",
        "_refused",
        "_voters",
        "deadline_ms",
        "retry_at_ms",
    )

    def __init__(self, node_id: int, voters: Sequence[int], now_ms: int, deadline_ms: int) -> None:
        self._voters = tuple(voters)
        self._granted: dict[int, None] = {node_id: None}
        self._refused: dict[int, None] = {}
        self._missed: dict[int, None] = {}  # voters that could not be reached so far
        self._ask_at: dict[int, int] = {voter: now_ms for voter in voters if voter != node_id}
        self.deadline_ms = deadline_ms
        self._patience_until_ms = min(now_ms + PATIENCE_MS, deadline_ms)
        self.retry_at_ms: int | None = None

    @property
    def _majority(self) -> int:
        return len(self._voters) // 2 + 1

    @property
    def won(self) -> bool:
        """A majority has granted its vote."""
        return len(self._granted) >= self._majority

    def lost(self, now_ms: int) -> bool:
        """Whether no majority is left among the voters that can be reached."""
        without = len(self._refused)
        if self._refused:
            patience_over = now_ms >= self._patience_until_ms
            without = len(self._voters) - len(self._granted) if patience_over else without + len(self._missed)
        return len(self._voters) - without < self._majority

    @property
    def granting_voters(self) -> list[int]:
        """The voters that granted, in the order of their ids."""
        return sorted(self._granted)

    def take_due(self, now_ms: int) -> list[int]:
        """The voters to ask now; they are not due again until `failed`."""
        due = [voter for voter, at_ms in self._ask_at.items() if at_ms <= now_ms]
        for voter in due:
            del self._ask_at[voter]
        return due

    def answered(self, voter: int, *, granted: bool) -> None:
        """Counts a vote or a refusal; a voter's first answer counts."""
        if voter in self._voters and voter not in self._granted and voter not in self._refused:
            (self._granted if granted else self._refused)[voter] = None
            self._missed.pop(voter, None)

    def failed(self, voter: int, ask_at_ms: int) -> None:
        """The voter did not answer: ask it again at `ask_at_ms`."""
        if voter in self._voters and voter not in self._granted and voter not in self._refused:
            self._ask_at[voter] = ask_at_ms
            self._missed[voter] = None

    def wake_at_ms(self) -> int:
        """The time of the next action."""
        if self.retry_at_ms is not None:
            return self.retry_at_ms
        until_ms = self._patience_until_ms if self._refused else self.deadline_ms
        return min([until_ms, *self._ask_at.values()])
