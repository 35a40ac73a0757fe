"""System randomness: the operating system provides seed and uuids."""

from __future__ import annotations

import os
import random

_FIRST_SIX_BITS_OF_A_DASH = 62  # "-" in URL-safe base64


def uuid_from_bytes(raw: bytes) -> bytes:
    """Sets version (4) and variant bits of 16 random bytes (RFC 9562)."""
    uuid = bytearray(raw)
    uuid[6] = (uuid[6] & 0x0F) | 0x40
    uuid[8] = (uuid[8] & 0x3F) | 0x80
    if uuid[0] >> 2 == _FIRST_SIX_BITS_OF_A_DASH:
        # As in Kafka: command-line tools would read a leading dash as an option.
        uuid[0] &= 0x7F
    return bytes(uuid)


class SystemRng:
    """The `Rng` port over a generator seeded by the operating system."""

    __slots__ = ("_random",)

    def __init__(self) -> None:
        self._random = random.Random()

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> bytes:
        """16 bytes of a version-4 UUID, never beginning with "-" in base64."""
        return uuid_from_bytes(os.urandom(16))
