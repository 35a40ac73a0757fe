"""Kerberos principal names in the cluster: sasl.kerberos.principal.to.local.rules as in Kafka's KerberosName and KerberosShortNamer.
DEFAULT: the first component, in the default realm. RULE:[n:format](match)s/pattern/replacement/g/L: for n components; $0 is the realm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from barnabas.broker.config.java_patterns import check_references, java_pattern, replaced
from barnabas.errors import BarnabasError

NAME_CHARS_MAX: Final = 1_024
RULES_CHARS_MAX: Final = 16_384
_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"(DEFAULT)|RULE:\[(\d*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU])?", re.ASCII
)
_PARAMETER: Final = re.compile(r"\$(\d*)", re.ASCII)
_NOT_SIMPLE: Final = re.compile(r"[/@]")


class KerberosNameError(BarnabasError):
    """A principal that is malformed, or to which no rule applies."""


class _Rule(NamedTuple):
    text: str
    components: int = 0  # 0: DEFAULT
    format: str = ""
    match: re.Pattern[str] | None = None
    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    every: bool = False  # match of the pattern, not only the first
    case: str = ""

    def applied(self, parts: list[str], default_realm: str) -> str | None:
        """None if the rule does not apply. `parts`: the realm, then the components. Raises KerberosNameError."""
        if self.components == 0:
            name = parts[1] if parts[0] == default_realm else None
        elif self.components != len(parts) - 1:
            name = None
        else:
            name = self._rewritten(_PARAMETER.sub(lambda found: parts[int(found[1])], self.format))
        if name is None:
            return None
        if _NOT_SIMPLE.search(name):
            raise KerberosNameError(f"the rule {self.text!r} gives {name!r}, which is no simple name")
        return {"L": name.lower, "U": name.upper}.get(self.case, lambda: name)()

    def _rewritten(self, name: str) -> str | None:
        if self.match is not None and self.match.fullmatch(name) is None:
            return None
        if self.pattern is None:
            return name
        return replaced(self.pattern, self.replacement, name, first_only=not self.every)


def local_names(rules: Sequence[str], default_realm: str) -> Callable[[str], str]:
    """Maps principals to names; the function raises KerberosNameError. `default_realm` "": none. Raises ValueError for a malformed rule."""
    parsed = [_parsed(rule) for rule in rules]

    def local_name(principal: str) -> str:
        if len(principal) > NAME_CHARS_MAX:
            raise KerberosNameError(f"a principal of {len(principal)} characters, allowed are {NAME_CHARS_MAX}")
        found = _NAME.fullmatch(principal)
        if found is None:
            if "@" in principal:
                raise KerberosNameError(f"the principal {principal!r} is not SERVICE/HOST@REALM or USER@REALM")
            return principal
        service, host, realm = found.groups()
        parts = [realm, service] if host is None else [realm, service, host]
        for rule in parsed:
            name = rule.applied(parts, default_realm)
            if name is not None:
                return name
        raise KerberosNameError(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal!r}")

    return local_name


def check_local_rules(value: object) -> str | None:
    """An error text; None if valid."""
    rules = value if isinstance(value, tuple) else ()
    try:
        for rule in rules:
            _parsed(str(rule))
    except ValueError as error:
        return str(error)
    return None


def _parsed(text: str) -> _Rule:
    found = _RULE.fullmatch(text) if len(text) <= RULES_CHARS_MAX else None
    if found is None:
        raise ValueError(
            f"the rule {text[:80]!r} is wrong: write DEFAULT or RULE:[n:format](match)s/pattern/replacement/g/L"
        )
    default, number, format_, match, pattern, replacement, every, case = found.groups()
    if default is not None:
        return _Rule(text)
    if number not in ("1", "2"):
        raise ValueError(f"the rule {text[:80]!r} is for {number or 'no'} components; principals have 1 or 2")
    for parameter in _PARAMETER.finditer(format_):
        if not parameter[1] or len(parameter[1]) > 9 or int(parameter[1]) > int(number):
            raise ValueError(f"the rule {text[:80]!r} has {parameter[0]!r}; write $0 to ${number}")
    compiled = None
    if pattern is not None:
        compiled = java_pattern(pattern)
        check_references(compiled, replacement)
    return _Rule(
        text,
        int(number),
        format_,
        None if match is None else java_pattern(match),
        compiled,
        replacement or "",
        every is not None,
        case or "",
    )
