"""`barnabas features …`: shows and changes the levels of a cluster's features, as Kafka's kafka-features does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from cyclopts import App, Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import Cell, Json, Report, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.client.admin import FeatureDescription
from barnabas.client.errors import IllegalState
from barnabas.protocol.metadata_versions import metadata_version_level, metadata_version_name

METADATA_VERSION: Final = "metadata.version"

app = App(
    name="features",
    help_epilogue="Examples:\n\n- `barnabas features describe`\n- `barnabas features upgrade 4.3-IV0 --dry-run`",
)

Levels = Annotated[
    str,
    Parameter(help="FEATURE=LEVEL; a metadata.version by its name, such as metadata.version=4.3-IV0 or 4.3-IV0 alone."),
]
DryRun = Annotated[bool, Parameter(name="--dry-run", help="Only ask whether the cluster would accept it.")]


@app.command(help_epilogue="Examples:\n\n- `barnabas features describe`\n- `barnabas features describe --json`")
@client_command("features describe")
async def describe(*, json_: Json = False, connection: Connection = DEFAULT_CONNECTION) -> None:
    """Show each feature: the levels that a broker supports, and the level of the cluster."""
    async with connection.admin() as admin:
        features = await admin.describe_features()
    FEATURES.show(features, json_)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas features upgrade metadata.version=4.3-IV0 --dry-run`\n"
    "- `barnabas features upgrade transaction.version=2 group.version=1`"
)
@client_command("features upgrade")
async def upgrade(
    *levels: Levels, dry_run: DryRun = False, json_: Json = False, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Raise features to levels: all of them or none."""
    await _update(levels, "refuse", dry_run, json_, connection)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas features downgrade transaction.version=1 --dry-run`\n"
    "- `barnabas features downgrade metadata.version=4.2-IV1 --unsafe`"
)
@client_command("features downgrade")
async def downgrade(
    *levels: Levels,
    unsafe: Annotated[bool, Parameter(help="Also if metadata is lost.")] = False,
    dry_run: DryRun = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Lower features to levels: all of them or none. Level 0 disables a feature."""
    await _update(levels, "unsafe" if unsafe else "safe", dry_run, json_, connection)


async def _update(
    arguments: Sequence[str],
    lowering: Literal["refuse", "safe", "unsafe"],
    dry_run: bool,
    json_: bool,
    connection: Connection,
) -> None:
    wanted = _wanted(arguments)
    if not wanted:
        raise WrongCall("nothing to change: name FEATURE=LEVEL, such as metadata.version=4.3-IV0")
    async with connection.admin() as admin:
        present = {each.name: each for each in await admin.describe_features()}
        _check(present, wanted, lowers=lowering != "refuse")
        changed = {name: level for name, level in wanted.items() if present[name].finalized_level != level}
        if not changed:
            raise WrongCall("nothing to change: the cluster has these levels already")
        await admin.update_features(changed, downgrade=lowering, validate_only=dry_run)
    changes = [_Change(name, present[name].finalized_level, level, dry_run) for name, level in changed.items()]
    if json_:
        print_json(CHANGES.documents(changes))
        return
    for each in changes:
        verb = "could change" if dry_run else "changed"
        print(f"{verb} {each.name}: {_level(each.name, each.before)} → {_level(each.name, each.level)}")


def _wanted(arguments: Sequence[str]) -> dict[str, int]:
    """Reads FEATURE=LEVEL. Raises WrongCall."""
    wanted: dict[str, int] = {}
    for argument in arguments:
        name, separator, level = argument.partition("=")
        if not separator:
            name, level = METADATA_VERSION, argument
        if name in wanted:
            raise WrongCall(f"{name} is named twice")
        if level.isascii() and level.isdigit() and len(level) <= 5 and int(level) < 2**15:
            wanted[name] = int(level)
        elif name == METADATA_VERSION:
            try:
                wanted[name] = metadata_version_level(level)
            except ValueError as error:
                raise WrongCall(str(error)) from None
        else:
            raise WrongCall(f"{argument!r} is not FEATURE=LEVEL, such as transaction.version=2")
    return wanted


def _check(present: Mapping[str, FeatureDescription], wanted: Mapping[str, int], *, lowers: bool) -> None:
    """Raises IllegalState for an unknown feature, and for a level on the wrong side of the present one."""
    for name, level in wanted.items():
        if name not in present:
            raise IllegalState(f"unknown feature {name!r}; the cluster knows {', '.join(present)}")
        before = present[name].finalized_level
        if lowers and level > before:
            raise IllegalState(f"{name} is {_level(name, before)}: `features upgrade` raises it")
        if not lowers and level < before:
            raise IllegalState(f"{name} is {_level(name, before)}: `features downgrade` lowers it")


def _level(name: str, level: int) -> str:
    return metadata_version_name(level) if name == METADATA_VERSION and level else str(level)


FEATURES = Report[FeatureDescription](
    Cell("feature", "name"),
    Cell("min", "min_level", text=lambda f: _level(f.name, f.min_level)),
    Cell("max", "max_level", text=lambda f: _level(f.name, f.max_level)),
    Cell("", "finalized_level"),
    Cell("finalized", "finalized_level_name", lambda f: _level(f.name, f.finalized_level)),
)


class _Change(NamedTuple):
    name: str
    before: int
    level: int
    dry_run: bool


CHANGES = Report[_Change](
    Cell("", "name"),
    Cell("", "before"),
    Cell("", "level"),
    Cell("", "level_name", lambda change: _level(change.name, change.level)),
    Cell("", "dry_run"),
)
