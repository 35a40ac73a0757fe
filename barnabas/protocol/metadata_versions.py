"""Names of metadata.version levels, such as 4.3-IV0 for 30 (MetadataVersion of Kafka 4.3.1), from level 7 on (KRaft)."""

from __future__ import annotations

from typing import Final

METADATA_VERSIONS: Final[dict[int, str]] = dict(
    enumerate(
        (
            "3.0-IV1",
            "3.1-IV0",
            "3.2-IV0",
            "3.3-IV0",
            "3.3-IV1",
            "3.3-IV2",
            "3.3-IV3",
            "3.4-IV0",
            "3.5-IV0",
            "3.5-IV1",
            "3.5-IV2",
            "3.6-IV0",
            "3.6-IV1",
            "3.6-IV2",
            "3.7-IV0",
            "3.7-IV1",
            "3.7-IV2",
            "3.7-IV3",
            "3.7-IV4",
            "3.8-IV0",
            "3.9-IV0",
            "4.0-IV0",
            "4.0-IV1",
            "4.0-IV2",
            "4.0-IV3",
            "4.1-IV0",
            "4.1-IV1",
            "4.2-IV0",
            "4.2-IV1",
            "4.3-IV0",
        ),
        start=1,
    )
)


def metadata_version_name(level: int) -> str:
    return METADATA_VERSIONS.get(level, str(level))


def metadata_version_level(name: str) -> int:
    """The level of "4.3-IV0", or of a release ("4.3": its last level). Raises ValueError."""
    found = [level for level, each in METADATA_VERSIONS.items() if name in (each, each.partition("-")[0])]
    if not found:
        releases = dict.fromkeys(each.partition("-")[0] for each in METADATA_VERSIONS.values())
        raise ValueError(f"{name!r} is no metadata.version; known releases are {', '.join(releases)}")
    return found[-1]
