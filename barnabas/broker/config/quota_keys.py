"""Keys of quotas: how rates of clients are measured."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.key import ConfigKey, at_least, integer

QUOTA_KEYS: Final[list[ConfigKey]] = [
    integer("quota.window.num", 11, "Samples that make the rates of clients with quotas.", at_least(1)),
    integer("quota.window.size.seconds", 1, "Length of such a sample.", at_least(1)),
    integer("controller.quota.window.num", 11, "Samples of the rate of created and deleted partitions.", at_least(1)),
    integer("controller.quota.window.size.seconds", 1, "Length of such a sample.", at_least(1)),
]
