"""Frames of requests around any body, also one that no client would send."""

from __future__ import annotations

import struct

from barnabas.protocol import registry


def request_frame(body: bytes, key: int, version: int) -> bytes:
    """A frame with a proper header around any body."""
    flexible = registry.request_header_version(key, version) >= 2 if key in registry.API else False
    header = struct.pack(">hhih", key, version, 7, 4) + b"fuzz" + (b"\0" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body
