"""`barnabas` with an authorizer whatever the configuration says: clients without authentication are super users."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.broker import node
from barnabas.broker.security.authorizer_keys import AuthorizerSettings


def settings(static: Mapping[str, str], *, controller: bool) -> AuthorizerSettings:
    return AuthorizerSettings(frozenset({"User:ANONYMOUS"}))


if __name__ == "__main__":
    setattr(node, "authorizer_settings", settings)  # noqa: B010  # in place of the keys
    from barnabas.cli.main import main

    main()
