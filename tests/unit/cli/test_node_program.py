"""What `barnabas serve` says to do when the system refuses something."""

from __future__ import annotations

import errno

from barnabas.broker.config import BrokerConfig
from barnabas.cli.node_program import remedy


def test_what_to_do_about_a_directory_that_may_not_be_written() -> None:
    config = BrokerConfig({"log.dirs": "one,two"})
    denied = PermissionError(errno.EACCES, "Permission denied", "two/.lock")
    assert remedy(denied, config).startswith(": the node must read and write in two; change its owner or permissions")
    assert remedy(PermissionError(errno.EACCES, "cannot bind 127.0.0.1:80: permission denied"), config) == ""
