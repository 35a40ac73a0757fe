"""The router: which listener serves what, and whose handlers those are."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, Protocol

import pytest

from barnabas.broker import handlers
from barnabas.broker.api.router import Router
from barnabas.broker.handlers.needs import Needs
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.registry import API, Api

NOTHING: Any = object()  # what handlers work on: none runs here
LISTENERS = ("broker", "controller")
SERVED = [pytest.param(api, name, id=f"{api.name}-{name}") for api in API.values() for name in sorted(api.listeners)]


@pytest.mark.parametrize(("api", "listener"), SERVED)
def test_everything_advertised_has_a_handler_in_every_version(api: Api, listener: str) -> None:
    router = Router(NOTHING, listener)
    for version in range(api.versions[0], api.versions[1] + 1):
        route = router.route(api.key, version)
        assert callable(route.handler)
        assert callable(route.refuse)


@pytest.mark.parametrize("listener", LISTENERS)
def test_tables_hold_nothing_that_is_not_advertised(listener: str) -> None:
    router = Router(NOTHING, listener)
    by_family: dict[str, set[type]] = {}
    for api in router.apis.values():
        by_family.setdefault(router.family(api), set()).add(api.request)
    for family, requests in by_family.items():
        module = import_module(f"barnabas.broker.handlers.{family}")
        assert set(module.HANDLERS if listener == "broker" else module.CONTROLLER_HANDLERS) == requests


def members_of(needs: type) -> set[str]:
    """The members of a protocol, its bases included."""
    classes = [each for each in needs.__mro__ if each not in (object, Protocol, Generic)]
    names = {name for each in classes for name in (*vars(each).get("__annotations__", ()), *vars(each))}
    return {name for name in names if not name.startswith("_")}


MODULES = [module.name for module in iter_modules(handlers.__path__)]
FAMILIES = [name for name in MODULES if hasattr(import_module(f"barnabas.broker.handlers.{name}"), "HANDLERS")]


def parts_of(family: str) -> set[str]:
    """The parts of a node that the module of a family uses: attributes of what is called needs."""
    tree = ast.parse(Path(handlers.__path__[0], f"{family}.py").read_text())
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {each.attr for each in used if ast.unparse(each.value) in ("needs", "self.needs", "self._needs")}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_needs_ten_parts_at_most_and_needs_names_them(family: str) -> None:
    parts = parts_of(family)
    assert len(parts) <= 10
    assert parts <= members_of(Needs)


def test_every_part_that_needs_names_is_used() -> None:
    assert members_of(Needs) == set[str]().union(*map(parts_of, MODULES))


def test_a_listener_serves_nothing_of_the_other() -> None:
    with pytest.raises(RemoteProtocolError, match="Vote is not served on this listener"):
        Router(NOTHING).route(52, 0)
    with pytest.raises(RemoteProtocolError, match="Metadata is not served on this listener"):
        Router(NOTHING, "controller").route(3, 0)
    with pytest.raises(RemoteProtocolError, match="Metadata before a login: this listener needs SASL"):
        Router(NOTHING, "login").route(3, 0)


def test_unknown_keys_and_versions_are_named() -> None:
    with pytest.raises(RemoteProtocolError, match="unknown API key 9999"):
        Router(NOTHING).route(9999, 0)
    with pytest.raises(RemoteProtocolError, match="Metadata version 99 is not served, only 0 to 13"):
        Router(NOTHING).route(3, 99)
