"""`barnabas quota …`: shows and changes quotas of users, client ids and addresses, as Kafka's kafka-configs does."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Annotated, Final

from cyclopts import App, Parameter

from barnabas.cli.arguments import key_values
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import Cell, Json, Report, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.client.admin import ClientQuotas
from barnabas.client.admin.types import QuotaEntityType
from barnabas.client.errors import IllegalState

BYTE_RATES: Final = frozenset({"producer_byte_rate", "consumer_byte_rate"})
KEYS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
UNITS: Final[Mapping[str, float]] = {
    "": 1,
    "b": 1,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    **{unit: 1024.0**power for power, units in enumerate(("k kib", "m mib", "g gib"), 1) for unit in units.split()},
}
_VALUE: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?([a-zA-Z]{0,3})")

app = App(
    name="quota",
    help_epilogue="Examples:\n\n- `barnabas quota list`\n"
    "- `barnabas quota set --user alice producer_byte_rate=10MB/s request_percentage=50`\n"
    "- `barnabas quota set --default-client-id consumer_byte_rate=50MB/s`",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Entity:
    """The options that name what has a quota."""

    user: Annotated[str | None, Parameter(help="The user's name, such as alice; ANONYMOUS without authentication.")] = (
        None
    )
    client_id: Annotated[str | None, Parameter(help="The client id.")] = None
    ip: Annotated[str | None, Parameter(help="The address.")] = None
    default_user: Annotated[bool, Parameter(help="The default of users without a quota.")] = False
    default_client_id: Annotated[bool, Parameter(help="The default of client ids without a quota.")] = False
    default_ip: Annotated[bool, Parameter(help="The default of addresses without a quota.")] = False

    def named(self) -> dict[QuotaEntityType, str | None]:
        """The name by type; None is the default. Raises WrongCall: options exclude each other."""
        found: dict[QuotaEntityType, str | None] = {}
        options: Sequence[tuple[QuotaEntityType, str | None, bool]] = (
            ("user", self.user, self.default_user),
            ("client-id", self.client_id, self.default_client_id),
            ("ip", self.ip, self.default_ip),
        )
        for kind, name, default in options:
            if name is not None and default:
                raise WrongCall(f"--{kind} and --default-{kind} exclude each other")
            if name is not None or default:
                found[kind] = name
        if "ip" in found and len(found) > 1:
            raise WrongCall("an address has quotas of its own, without user and client id")
        return found


NO_ENTITY: Final = Entity()
DryRun = Annotated[bool, Parameter(name="--dry-run", help="Only check the changes.")]


@app.command(
    name=["list", "ls"],
    help_epilogue="Examples:\n\n- `barnabas quota list`\n- `barnabas quota list --user alice --json`",
)
@client_command("quota list")
async def list_(
    *,
    of: Entity = NO_ENTITY,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show quotas: all, or those of a user, a client id or an address, also where it is combined with others."""
    entity = of.named()
    wanted: dict[QuotaEntityType, str | EllipsisType | None] = {**entity}
    async with connection.admin() as admin:
        found = await admin.describe_client_quotas(wanted)
    if json_:
        print_json([{"entity": dict(each.entity), "quotas": dict(sorted(each.quotas.items()))} for each in found])
    elif not found:
        print("there are no such quotas" if entity else "there are no quotas", file=sys.stderr)
    else:
        print(QUOTAS.text((each, *quota) for each in found for quota in sorted(each.quotas.items())))


@app.command(
    name="set",
    help_epilogue="Examples:\n\n- `barnabas quota set --user alice producer_byte_rate=10MB/s`\n"
    "- `barnabas quota set --user alice --default-client-id request_percentage=25`\n"
    "- `barnabas quota set --ip 10.0.0.7 connection_creation_rate=5`",
)
@client_command("quota set")
async def set_(
    *quotas: Annotated[
        str,
        Parameter(
            help="QUOTA=VALUE: producer_byte_rate, consumer_byte_rate (bytes a second, such as 10MB/s), request_percentage, "
            "controller_mutation_rate (partitions a second), connection_creation_rate (of an address)."
        ),
    ],
    of: Entity = NO_ENTITY,
    dry_run: DryRun = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Set quotas of one user, client id, both, or address. Quotas that are not named stay as they are."""
    entity = of.named()
    values = {key: quota_value(key, text) for key, text in key_values(quotas).items()}
    if of.user is not None and of.user.startswith("User:"):
        raise WrongCall(f"--user {of.user} is a principal: write the name alone, --user {of.user[5:]}")
    if not entity or not values:
        raise WrongCall("name an entity, such as --user alice, and a quota, such as producer_byte_rate=10MB/s")
    async with connection.admin() as admin:
        await admin.alter_client_quotas(entity, values, validate_only=dry_run)
    _print_change(entity, values, dry_run, json_)


@app.command(
    name="remove",
    help_epilogue="Examples:\n\n- `barnabas quota remove --user alice producer_byte_rate`\n"
    "- `barnabas quota remove --default-client-id --all`",
)
@client_command("quota remove")
async def remove_(
    *quotas: Annotated[str, Parameter(help="Names of quotas, such as producer_byte_rate.")],
    all_: Annotated[bool, Parameter(name="--all", help="All quotas of the entity.")] = False,
    of: Entity = NO_ENTITY,
    dry_run: DryRun = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Remove quotas of one user, client id, both, or address."""
    entity = of.named()
    if not entity or bool(quotas) == all_:
        raise WrongCall("name an entity, such as --user alice, and its quotas or --all")
    async with connection.admin() as admin:
        wanted: dict[QuotaEntityType, str | EllipsisType | None] = {**entity}
        found = await admin.describe_client_quotas(wanted, strict=True)
        present = found[0].quotas if found else {}
        missing = [key for key in quotas if key not in present]
        if missing or not present:
            raise IllegalState(f"{_called(entity)} has no quota {missing[0] if missing else ''}".rstrip())
        values: dict[str, float | None] = dict.fromkeys(quotas or present)
        await admin.alter_client_quotas(entity, values, validate_only=dry_run)
    _print_change(entity, values, dry_run, json_)


def quota_value(key: str, text: str) -> float:
    """Reads the value of a quota: bytes a second may have a unit, such as 10MB/s (powers of 1,000) or 10MiB/s and 10M (of 1,024).

    Raises WrongCall: the quota is unknown, or the text is no such value.
    """
    if key not in KEYS:
        raise WrongCall(f"unknown quota {key!r}; the quotas are {', '.join(KEYS)}")
    short = text.strip().removesuffix("/s")
    if key == "request_percentage":
        short = short.removesuffix("%")
    found = _VALUE.fullmatch(short)
    unit = found[2].lower() if found else ""
    if found is None or unit not in UNITS or (unit and key not in BYTE_RATES):
        example = "10MB/s" if key in BYTE_RATES else "50"
        raise WrongCall(f"{text!r} is not a value for {key}, such as {example}")
    value = float(found[1]) * UNITS[unit]
    return float(int(value)) if key in BYTE_RATES else value


def _called(entity: Mapping[QuotaEntityType, str | None]) -> str:
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items())


def _print_change(
    entity: Mapping[QuotaEntityType, str | None], values: Mapping[str, float | None], dry_run: bool, json_: bool
) -> None:
    if json_:
        changes = [{"name": name, "value": value} for name, value in values.items()]
        print_json({"entity": dict(entity), "changes": changes, "dry_run": dry_run})
        return
    for name, value in values.items():
        verb = "would set" if dry_run else "set"
        if value is None:
            print(f"{'would remove' if dry_run else 'removed'} {name} of {_called(entity)}")
        else:
            print(f"{verb} {name} of {_called(entity)} to {_number(value)}")


def _of(kind: str) -> Callable[[tuple[ClientQuotas, str, float]], str | None]:
    def name(row: tuple[ClientQuotas, str, float]) -> str | None:
        names = dict(row[0].entity)
        return None if kind not in names else "(default)" if names[kind] is None else names[kind]

    return name


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else str(value)


QUOTAS: Final = Report[tuple[ClientQuotas, str, float]](
    Cell("user", text=_of("user"), shrinks=True),
    Cell("client-id", text=_of("client-id"), shrinks=True),
    Cell("ip", text=_of("ip")),
    Cell("quota", text=lambda row: row[1]),
    Cell("value", text=lambda row: _number(row[2])),
)
