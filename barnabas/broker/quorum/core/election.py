"""Election: counts the votes of one candidate, or pre-votes of one prospective candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# After a refusal the candidate does not wait longer for silent or unreachable voters: the address of a dead voter may have vanished
# with it, and connecting takes seconds; two candidates and a dead voter are a tie. A later vote still counts.
PATIENCE_MS: Final = 200


class Election:
    """One round of votes in one epoch; the node votes for itself. Unreachable voters are asked again after a pause."""

    def __init__(self, node_id: int, voters: Sequence[int], now_ms: int, deadline_ms: int) -> None:
        self._voters = tuple(voters)
        self._granted: dict[int, None] = {node_id: None}
        self._refused: dict[int, None] = {}
        self._missed: dict[int, None] = {}  # voters that could not be reached so far
        self._ask_at: dict[int, int] = {voter: now_ms for voter in voters if voter != node_id}
        self.deadline_ms = deadline_ms  # end of the election
        self._patience_until_ms = min(now_ms + PATIENCE_MS, deadline_ms)
        self.retry_at_ms: int | None = None  # of the next election after a lost one; None while it is open

    @property
    def _majority(self) -> int:
        return len(self._voters) // 2 + 1

    @property
    def won(self) -> bool:
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
        """In the order of their ids."""
        return sorted(self._granted)

    def take_due(self, now_ms: int) -> list[int]:
        """The voters to ask now; not due again until `failed`."""
        due = [voter for voter, at_ms in self._ask_at.items() if at_ms <= now_ms]
        for voter in due:
            del self._ask_at[voter]
        return due

    def answered(self, voter: int, *, granted: bool) -> None:
        """A voter's first answer counts."""
        if voter in self._voters and voter not in self._granted and voter not in self._refused:
            (self._granted if granted else self._refused)[voter] = None
            self._missed.pop(voter, None)

    def failed(self, voter: int, ask_at_ms: int) -> None:
        if voter in self._voters and voter not in self._granted and voter not in self._refused:
            self._ask_at[voter] = ask_at_ms
            self._missed[voter] = None

    def wake_at_ms(self) -> int:
        if self.retry_at_ms is not None:
            return self.retry_at_ms
        until_ms = self._patience_until_ms if self._refused else self.deadline_ms
        return min([until_ms, *self._ask_at.values()])
