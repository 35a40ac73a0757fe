"""CRC-32C, the checksum of record batches: the C function of the package `crc32c`, without the rest of that package.

The package's first line reads its own version by `importlib.metadata`, and that takes 10 ms, an eighth of a short command. So the
extension module alone is loaded. Where it is not found beside its package, the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any


def _extension() -> Any:
    """The extension module of the package, or the package itself."""
    package = PathFinder.find_spec("crc32c")
    if package is not None and package.submodule_search_locations:
        found = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if found is not None and found.loader is not None:
            module = found.loader.create_module(found)
            if module is not None:
                found.loader.exec_module(module)
                return module
    import crc32c as whole

    return whole


crc32c: Callable[..., int] = _extension().crc32c
