"""What each process of Spark does once it is connected."""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec

import pytest

from barnabas.pipeline.connection import keep_imports


@pytest.mark.parametrize(("program", "kept"), [("pyspark.daemon", True), ("job", False), (None, False)])
def test_only_spark_workers_take_their_imports_out_of_the_collections(
    program: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if program is None else ModuleSpec(program, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec, raising=False)
    keep_imports.cache_clear()
    gc.unfreeze()
    try:
        keep_imports()
        assert (gc.get_freeze_count() > 1000) == kept
    finally:
        gc.unfreeze()
        keep_imports.cache_clear()
