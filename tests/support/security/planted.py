"""The prefix of passwords in tests: nothing that a test or a broker prints may hold it (tests/conftest.py looks)."""

from __future__ import annotations

PLANTED = "planted-"
