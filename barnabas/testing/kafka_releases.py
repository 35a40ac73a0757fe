"""What the brokers of Apache Kafka's releases announce to clients: versions of each API, and levels of features. Data only.

Source: the jars of Maven Central (kafka-clients, kafka-server-common) of 2.8.2, 3.0.2, 3.1.2, 3.2.3, 3.3.2, 3.4.1, 3.5.2, 3.6.2,
3.7.2, 3.8.1, 3.9.2, 4.0.1, 4.1.1, 4.2.0 and 4.3.1. A Java program read `ApiMessageType` (the range of each API without unstable
versions, for the listener of brokers; up to 3.2, which ran on ZooKeeper, for that of ZooKeeper's brokers), `MetadataVersion` (its lowest
level and that of production) and `Feature` (range, and the level of a new cluster).
"""

from __future__ import annotations

from typing import Final

# Release -> what differs from the release before: API key -> (lowest, highest) version; None: it is served no more.
# fmt: off
API_CHANGES: Final[dict[str, dict[int, tuple[int, int] | None]]] = {
    "2.8": {
        0: (0, 9), 1: (0, 12), 2: (0, 6), 3: (0, 11), 4: (0, 5), 5: (0, 3), 6: (0, 7), 7: (0, 3), 8: (0, 8),
        9: (0, 7), 10: (0, 3), 11: (0, 7), 12: (0, 4), 13: (0, 4), 14: (0, 5), 15: (0, 5), 16: (0, 4), 17: (0, 1),
        18: (0, 3), 19: (0, 7), 20: (0, 6), 21: (0, 2), 22: (0, 4), 23: (0, 4), 24: (0, 3), 25: (0, 3), 26: (0, 3),
        27: (0, 1), 28: (0, 3), 29: (0, 2), 30: (0, 2), 31: (0, 2), 32: (0, 4), 33: (0, 2), 34: (0, 2), 35: (0, 2),
        36: (0, 2), 37: (0, 3), 38: (0, 2), 39: (0, 2), 40: (0, 2), 41: (0, 2), 42: (0, 2), 43: (0, 2), 44: (0, 1),
        45: (0, 0), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 56: (0, 0), 57: (0, 0),
        60: (0, 0), 61: (0, 0),
    },
    "3.0": {
        2: (0, 7), 9: (0, 8), 10: (0, 4), 65: (0, 0), 66: (0, 0), 67: (0, 0),
    },
    "3.1": {
        1: (0, 13), 3: (0, 12),
    },
    "3.2": {
        4: (0, 6), 11: (0, 9), 13: (0, 5), 35: (0, 3), 56: (0, 1),
    },
    "3.3": {
        4: None, 5: None, 6: None, 7: None, 29: (0, 3), 30: (0, 3), 31: (0, 3), 35: (0, 4), 38: None, 39: None,
        40: None, 41: None, 50: None, 51: None, 55: (0, 1), 56: None, 57: (0, 1), 64: (0, 0), 67: None,
    },
    "3.4": {},
    "3.5": {
        1: (0, 15), 2: (0, 8), 50: (0, 0), 51: (0, 0),
    },
    "3.6": {
        24: (0, 4), 38: (0, 3), 39: (0, 2), 40: (0, 2), 41: (0, 3),
    },
    "3.7": {
        0: (0, 10), 1: (0, 16), 8: (0, 9), 9: (0, 9), 60: (0, 1), 68: (0, 0), 71: (0, 0), 72: (0, 0), 74: (0, 0),
    },
    "3.8": {
        0: (0, 11), 10: (0, 5), 16: (0, 5), 22: (0, 5), 24: (0, 5), 25: (0, 4), 26: (0, 4), 28: (0, 4), 66: (0, 1),
        69: (0, 0), 75: (0, 0),
    },
    "3.9": {
        1: (0, 17), 2: (0, 9), 10: (0, 6), 18: (0, 4), 55: (0, 2), 80: (0, 0), 81: (0, 0),
    },
    "4.0": {
        0: (3, 12), 1: (4, 17), 2: (1, 10), 3: (0, 13), 8: (2, 9), 9: (1, 9), 15: (0, 6), 19: (2, 7), 20: (1, 6),
        23: (2, 4), 26: (0, 5), 27: (1, 1), 28: (0, 5), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 34: (1, 2),
        35: (1, 4), 38: (1, 3), 39: (1, 2), 40: (1, 2), 41: (1, 3), 57: (0, 2), 60: (0, 2), 68: (0, 1), 69: (0, 1),
    },
    "4.1": {
        0: (3, 13), 1: (4, 18), 45: (0, 1), 66: (0, 2), 74: (0, 1), 76: (1, 1), 77: (1, 1), 78: (1, 1), 79: (1, 1),
        83: (0, 0), 84: (0, 0), 85: (0, 0), 86: (0, 0), 87: (0, 0), 90: (0, 0), 91: (0, 0), 92: (0, 0),
    },
    "4.2": {
        2: (1, 11), 8: (2, 10), 9: (1, 10), 27: (1, 2), 78: (1, 2), 79: (1, 2), 80: (0, 1), 85: (0, 1), 87: (0, 1),
        88: (0, 0), 89: (0, 0), 90: (0, 1),
    },
    "4.3": {
        35: (1, 5),
    },
}
# fmt: on

# The same for features: name -> (lowest, highest, finalized) level.
FEATURE_CHANGES: Final[dict[str, dict[str, tuple[int, int, int]]]] = {
    "3.3": {"metadata.version": (1, 7, 7)},
    "3.4": {"metadata.version": (1, 8, 8)},
    "3.5": {"metadata.version": (1, 11, 11)},
    "3.6": {"metadata.version": (1, 14, 14)},
    "3.7": {"metadata.version": (1, 19, 19)},
    "3.8": {"metadata.version": (1, 20, 20)},
    "3.9": {"metadata.version": (1, 21, 21)},
    "4.0": {
        "metadata.version": (7, 25, 25),
        "eligible.leader.replicas.version": (0, 1, 0),
        "group.version": (0, 1, 1),
        "transaction.version": (0, 2, 2),
    },
    "4.1": {"metadata.version": (7, 27, 27), "eligible.leader.replicas.version": (0, 1, 1)},
    "4.2": {"metadata.version": (7, 29, 29)},
    "4.3": {"metadata.version": (7, 30, 30)},
}
