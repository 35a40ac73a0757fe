"""`barnabas certificates DIR NAME=HOST,…`: a certificate authority and certificates in PEM, for clusters of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.session import local_command
from barnabas.errors import BarnabasError
from barnabas.runtime.certificate_authority import Authority

NAMES_MAX: Final = 1_000
NAME_CHARS_MAX: Final = 64  # of a common name (X.520)
_IN_NAMES: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


@local_command("certificates")
def certificates(
    directory: Annotated[Path, Parameter(help="Created if missing; an existing CA is reused.")],
    /,
    *names: Annotated[
        str,
        Parameter(
            help="NAME=HOST,HOST for a node, with every name or address that its clients use; NAME for a client."
        ),
    ],
) -> None:
    """Make a certificate authority and certificates in PEM, for tests and clusters of your own.

    Prints the files. Existing certificates are kept unless a host is missing or they expire within 30 days.
    """
    if not names or len(names) > NAMES_MAX:
        raise WrongCall(f"name 1 to {NAMES_MAX} certificates, e.g. broker-1=broker-1,localhost")
    wanted = []
    for each in names:
        name, equals, hosts = each.partition("=")
        found = tuple(host.strip() for host in hosts.split(",") if host.strip())
        if not name or len(name) > NAME_CHARS_MAX or not _IN_NAMES.issuperset(name) or name.startswith("."):
            raise WrongCall(f"{each!r}: a name has 1 to {NAME_CHARS_MAX} letters, digits, '-', '_', '.'")
        if name == "ca":
            raise WrongCall("'ca' is the name of the authority: choose another")
        if (equals and not found) or not all(map(_is_host, found)):
            raise WrongCall(f"{each!r}: write NAME=HOST,HOST with host names or IP addresses")
        wanted.append((name, found))
    try:
        authority = Authority(directory)
        files = [authority.file, *(authority.issue(name, hosts_of) for name, hosts_of in wanted)]
    except OSError as error:
        raise BarnabasError(
            f"cannot write into {directory}: {error.strerror or error}; name a directory that you can write to"
        ) from None
    for file in files:
        print(file)


def _is_host(text: str) -> bool:
    return len(text) <= 253 and _IN_NAMES.union(":*").issuperset(text)
