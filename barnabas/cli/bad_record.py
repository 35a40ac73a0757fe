"""The error of a line that is no record. It stands alone, because most calls of `produce` read no JSON."""

from __future__ import annotations


class BadRecord(ValueError):
    """A line of input is not a record; the text says why."""
