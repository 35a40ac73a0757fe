"""The fenced examples of a Markdown page, for the tests that run them."""

from __future__ import annotations

from pathlib import Path


def snippets(page: Path, language: str) -> list[str]:
    """The text of each fenced block of one language, in order; "" takes the blocks without a language."""
    found: list[str] = []
    block: list[str] | None = None
    wanted = False
    for line in page.read_text().splitlines():
        if not line.startswith("```"):
            if block is not None:
                block.append(line)
        elif block is None:
            block, wanted = [], line == f"```{language}"
        else:
            if wanted:
                found.append("\n".join(block) + "\n")
            block = None
    return found
