"""Hosts of `barnabas acl add`: written as brokers compare them; one that matches no client is refused."""

from __future__ import annotations

import pytest

from barnabas.cli.acl import _compared_host


@pytest.mark.parametrize(
    ("given", "compared"),
    [
        ("*", "*"),
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::0a", "2001:db8:0:0:0:0:0:a"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
    ],
)
def test_addresses_are_written_as_java_writes_them(given: str, compared: str) -> None:
    assert _compared_host(given) == compared


@pytest.mark.parametrize("host", ["localhost", "10.0.0.0/8", "10.0.0.*", "10.0.0", "user@10.0.0.1", "١٠.0.0.7"])
def test_hosts_that_match_no_client_are_refused(host: str) -> None:
    with pytest.raises(ValueError, match="match no client"):
        _compared_host(host)
