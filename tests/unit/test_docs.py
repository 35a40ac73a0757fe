"""The documents that are drawn from the code say what the code says."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

from barnabas import client

ROOT = Path(__file__).parent.parent.parent


def test_documents_are_fresh() -> None:
    check = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`((?:unit|process|simulation|clients|oracle|pipeline)/[\w/]+\.py)::(\w+)`", _text("proof.md"))
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^(?:async )?def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_what_newcomers_are_told_to_use_is_there() -> None:
    """The first column of "coming from": classes, methods, and settings with their defaults."""
    rows = re.findall(r"^\| (.+?) \|", _text("client.md").partition("## Coming from")[2], re.MULTILINE)[2:]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 25
    classes = (client.Producer, client.Consumer, client.Admin)
    settings = {name: p.default for each in classes for name, p in inspect.signature(each).parameters.items()}
    known = {name for each in classes for name in (each.__name__, *dir(each))} | settings.keys()
    for text in named:
        name, _, value = re.sub(r"^(?:await|async with|async for) ?|[(:].*", "", text).partition("=")
        assert not name or name in known, text
        if re.fullmatch(r"\d+|\".*\"", value):
            assert settings[name] == ast.literal_eval(value), text


def _text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()
