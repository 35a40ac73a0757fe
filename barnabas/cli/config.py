"""`barnabas config …`: shows and changes the configs of topics, brokers and groups, as Kafka's kafka-configs does.

`_LISTED` says how the resources of a type are found for `config list`; the types themselves are `RESOURCE_TYPES` of
`barnabas.client.admin`. The values of secrets are never printed: brokers do not send them, and changes show none.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import App, Parameter

from barnabas.cli.arguments import Settings, key_values
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import Cell, Json, Report, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.cli.streams import printable
from barnabas.client.admin import CONFIG_SOURCES, Admin, ConfigEntry, ConfigResource
from barnabas.client.admin.types import ResourceType
from barnabas.client.errors import IllegalState, UnsupportedByBroker

DEFAULT_BROKER: Final = "default"  # the name that stands for the dynamic defaults of all brokers
DEFAULT_CONFIG: Final = 5  # source of a value that nothing sets
SECRET: Final = "(secret)"

app = App(
    name="config",
    help_epilogue="Examples:\n\n- `barnabas config describe topic orders`\n"
    "- `barnabas config alter broker default log.retention.ms=3600000`",
)

Type = Annotated[ResourceType, Parameter(help="Type of the resource.")]
Name = Annotated[
    str,
    Parameter(
        help="Name of the resource: a topic, a group, client metrics, or a broker's node id; `default` for the default of all brokers."
    ),
]
DryRun = Annotated[bool, Parameter(name="--dry-run", help="Only check the changes.")]
AnyKey = Annotated[bool, Parameter(help="Also keys that the broker does not list, such as a plugin's.")]


@app.command(
    help_epilogue="Examples:\n\n- `barnabas config describe topic orders --all`\n"
    "- `barnabas config describe broker 1 --key log.retention.ms --key num.io.threads --json`"
)
@client_command("config describe", about="{type_}:{name}")
async def describe(
    type_: Type,
    name: Name,
    *,
    all_: Annotated[bool, Parameter(name="--all", help="Also configs that have their default.")] = False,
    key: Annotated[tuple[str, ...], Parameter(help="Only this config, set or not.")] = (),
    documentation: Annotated[bool, Parameter(help="Also what each config means.")] = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show configs with their sources, and the values that hold if the present ones are deleted (synonyms)."""
    resource = _resource(type_, name)
    async with connection.admin() as admin:
        found = await admin.describe_config_resources([resource], synonyms=True, documentation=documentation)
        entries = found.get(resource, {})
        if key:
            _refuse_unknown(resource, await _known(admin, resource, entries), key)
    shown = sorted(
        entry for entry in entries.values() if (entry.name in key if key else all_ or entry.source != DEFAULT_CONFIG)
    )
    if json_:
        table = Report(*_ENTRY, _SYNONYMS, *([_DOCUMENTATION] if documentation else []))
        configs = table.documents(shown)
        print_json({"resource_type": type_, "resource_name": resource.name, "configs": configs})
    elif not shown:
        print(f"{_called(resource)} has only defaults; --all shows them")
    else:
        head, *lines = Report(*_ENTRY).text(shown).splitlines()
        print(head)
        for line, entry in zip(lines, shown, strict=True):
            print(line)
            if others := _others(entry):
                print(printable(f"  else {others}"))
            if documentation:
                print(printable(f"  {entry.documentation or 'no documentation'}", "\n"))


@app.command(
    help_epilogue="Examples:\n\n- `barnabas config alter topic orders retention.ms=1000 cleanup.policy=compact,delete`\n"
    "- `barnabas config alter topic orders --append cleanup.policy=compact --delete retention.ms --dry-run`\n"
    "- `barnabas config alter broker default log.retention.ms=3600000`\n"
    "- `barnabas config alter group kitchen consumer.session.timeout.ms=50000`"
)
@client_command("config alter", about="{type_}:{name}")
async def alter(
    type_: Type,
    name: Name,
    *settings: Annotated[str, Parameter(help="key=value; all after the first = is the value, commas included.")],
    append: Settings = (),
    subtract: Settings = (),
    delete: Annotated[tuple[str, ...], Parameter(help="A key to reset to its default.")] = (),
    file: Annotated[Path | None, Parameter(help="A properties file with more settings.")] = None,
    any_key: AnyKey = False,
    dry_run: DryRun = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Change configs: all of the changes or none. Configs that are not named stay as they are.

    --append and --subtract add values to lists and remove them.
    """
    try:
        of_file = {} if file is None else _properties(file)
    except (OSError, ValueError) as error:
        raise WrongCall(f"cannot read {file}: {error}") from None
    wanted: list[_Change] = [
        *((key, "set", value) for key, value in (*of_file.items(), *key_values(settings).items())),
        *((key, "delete", None) for key in delete),
        *((key, "append", value) for key, value in key_values(append).items()),
        *((key, "subtract", value) for key, value in key_values(subtract).items()),
    ]
    named = [key for key, _, _ in wanted]
    twice = sorted({key for key in named if named.count(key) > 1})
    if twice:
        raise WrongCall(f"{twice[0]!r} is changed in two ways: name each key once")
    if not named:
        raise WrongCall("nothing to change: name key=value, --append, --subtract or --delete")
    await _change(_resource(type_, name), wanted, connection, any_key=any_key, dry_run=dry_run, json_=json_)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas config delete topic orders retention.ms`\n"
    "- `barnabas config delete broker 1 --all --dry-run`"
)
@client_command("config delete", about="{type_}:{name}")
async def delete(
    type_: Type,
    name: Name,
    *keys: Annotated[str, Parameter(help="Configs to reset to their defaults.")],
    all_: Annotated[bool, Parameter(name="--all", help="Every config that is set there.")] = False,
    dry_run: DryRun = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Reset configs to their defaults."""
    if bool(keys) == all_:
        raise WrongCall("name the configs to reset, or --all; one of both")
    wanted = None if all_ else [(key, "delete", None) for key in dict.fromkeys(keys)]
    await _change(_resource(type_, name), wanted, connection, dry_run=dry_run, json_=json_)


@app.command(
    name=["list", "ls"],
    help_epilogue="Examples:\n\n- `barnabas config list`\n- `barnabas config list topic broker --json`",
)
@client_command("config list")
async def list_(
    *types: Annotated[ResourceType, Parameter(help="Only resources of these types.")],
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """List every config that is set in the cluster: on topics, brokers, the default of all brokers, and groups."""

    unlisted = [each for each in types if each not in _LISTED]
    if unlisted:
        raise WrongCall(f"{unlisted[0]} resources cannot be listed, only {', '.join(_LISTED)}")
    async with connection.admin() as admin:
        rows = []
        for kind, names in _LISTED.items():
            if types and kind not in types:
                continue
            resources = [ConfigResource(kind, name) for name in await names(admin)]
            found = await admin.describe_config_resources(resources)
            for resource in resources:
                rows += [(resource, entry) for entry in _set_there(resource, found.get(resource, {}).values())]
    LISTED.show(rows, json_, empty="no config was changed")


async def _topics(admin: Admin) -> list[str]:
    return await admin.list_topics(include_internal=True)


async def _brokers(admin: Admin) -> list[str]:
    return ["", *(str(broker.node_id) for broker in await admin.list_brokers() if not broker.is_fenced)]


async def _groups(admin: Admin) -> list[str]:
    """Groups with configs need no member or offset; a Kafka before 4.1 cannot list them, only groups that exist."""
    try:
        return sorted(each.name for each in await admin.list_config_resources(["group"]))
    except UnsupportedByBroker:
        return sorted(group.group_id for group in await admin.list_groups())


async def _client_metrics(admin: Admin) -> list[str]:
    try:
        return sorted(each.name for each in await admin.list_config_resources(["client-metrics"]))
    except UnsupportedByBroker:
        return []


_LISTED: Final[dict[ResourceType, Callable[[Admin], Awaitable[list[str]]]]] = {
    "topic": _topics,
    "broker": _brokers,
    "group": _groups,
    "client-metrics": _client_metrics,
}

# The source of a config that is set on the resource itself.
_OWN_SOURCES: Final[dict[ResourceType, int]] = {
    "topic": 1,
    "broker": 2,
    "broker-logger": 6,
    "client-metrics": 7,
    "group": 8,
}


def _resource(type_: ResourceType, name: str) -> ConfigResource:
    if type_ == "broker" and name == DEFAULT_BROKER:
        return ConfigResource("broker", "")
    if type_ in ("broker", "broker-logger") and not (name.isascii() and name.isdigit()):
        default = f", or {DEFAULT_BROKER!r} for the default of all brokers" if type_ == "broker" else ""
        raise WrongCall(f"{name!r} is no node id of a broker, such as 1{default}")
    return ConfigResource(type_, name)


def _called(resource: ConfigResource) -> str:
    return f"{resource.type} {resource.name}" if resource.name else "the default of all brokers"


def _own_source(resource: ConfigResource) -> int:
    return _OWN_SOURCES[resource.type] if resource.name else 3


def _set_there(resource: ConfigResource, entries: Iterable[ConfigEntry]) -> list[ConfigEntry]:
    """The configs that are set on the resource itself, by name."""
    return sorted(entry for entry in entries if entry.source == _own_source(resource))


async def _known(admin: Admin, resource: ConfigResource, entries: Mapping[str, ConfigEntry]) -> dict[str, ConfigEntry]:
    """The configs that the resource may have: those of its description. The brokers' default lists only what is set; a broker lists all."""
    if resource.name:
        return dict(entries)
    broker = min(each.node_id for each in await admin.list_brokers() if not each.is_fenced)
    return {**await admin.describe_configs(broker=broker), **entries}


def _refuse_unknown(resource: ConfigResource, known: Mapping[str, ConfigEntry], keys: Iterable[str]) -> None:
    """Raises IllegalState with the nearest known key if one of the keys is unknown."""
    for key in keys:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, 1)
            advice = f"did you mean {nearest[0]!r}?" if nearest else "`config describe --all` lists what there is"
            raise IllegalState(f"unknown config {key!r} of {_called(resource)}; {advice}")


_Change = tuple[str, str, str | None]  # key, operation, value


class _Changed(NamedTuple):
    name: str
    operation: str
    value: str | None
    before: str | None
    is_sensitive: bool


async def _change(
    resource: ConfigResource,
    wanted: Sequence[_Change] | None,
    connection: Connection,
    *,
    any_key: bool = False,
    dry_run: bool,
    json_: bool,
) -> None:
    """Makes and shows the changes; `wanted` None resets everything that is set."""
    async with connection.admin() as admin:
        entries = (await admin.describe_config_resources([resource])).get(resource, {})
        own = {entry.name: entry for entry in _set_there(resource, entries.values())}
        if wanted is None:
            wanted = [(key, "delete", None) for key in own]
        known = await _known(admin, resource, entries)
        if not any_key:
            _refuse_unknown(resource, known, [key for key, _, _ in wanted])
        for key, operation, _ in wanted:
            if operation == "delete" and key not in own:
                raise IllegalState(f"{key!r} is not set on {_called(resource)}: there is nothing to reset")
        if not wanted:
            raise WrongCall(f"nothing is set on {_called(resource)}: there is nothing to reset")
        await admin.alter_config_resource(
            resource,
            {key: value for key, operation, value in wanted if operation in ("set", "delete")},
            append={key: value or "" for key, operation, value in wanted if operation == "append"},
            subtract={key: value or "" for key, operation, value in wanted if operation == "subtract"},
            validate_only=dry_run,
        )
    # As brokers do it: an unknown config may be a secret.
    public = {key for key, entry in known.items() if not entry.is_sensitive}
    done = [
        _Changed(key, operation, value, own[key].value if key in own else None, key not in public)
        for key, operation, value in wanted
    ]
    if json_:
        of = {"resource_type": resource.type, "resource_name": resource.name}
        print_json({**of, "dry_run": dry_run, "changes": CHANGES.documents(done)})
    else:
        print(f"{'could change' if dry_run else 'changed'} {_called(resource)}")
        print(CHANGES.text(done))


def _properties(file: Path) -> dict[str, str]:
    from barnabas.broker.config.properties import parse_properties

    return dict(parse_properties(file.read_text()))


def _hidden(value: str | None, is_secret: bool) -> str | None:
    return SECRET if is_secret and value is not None else value


def _source(source: int) -> str:
    return CONFIG_SOURCES.get(source, str(source))


def _short(source: int) -> str:
    """A source as the text has it: DYNAMIC_TOPIC_CONFIG is "topic"."""
    return _source(source).removeprefix("DYNAMIC_").removesuffix("_CONFIG").replace("_", " ").lower()


def _others(entry: ConfigEntry) -> str:
    """The values that hold if the present one is deleted, the next one first."""
    return ", ".join(
        f"{_short(each.source)} {each.name}={SECRET if entry.is_sensitive else each.value}"
        for each in entry.synonyms[1:]
    )


def _second(read: Callable[[ConfigEntry], Any], row: tuple[ConfigResource, ConfigEntry]) -> Any:
    return read(row[1])


_ENTRY: Final = (
    Cell[ConfigEntry]("name", "name", shrinks=True),
    Cell[ConfigEntry](
        "value",
        "value",
        lambda entry: None if entry.is_sensitive else entry.value,
        lambda entry: SECRET if entry.is_sensitive else entry.value,
        shrinks=True,
    ),
    Cell[ConfigEntry]("source", "source", lambda entry: _source(entry.source), lambda entry: _short(entry.source)),
    Cell[ConfigEntry]("", "is_sensitive"),
    Cell[ConfigEntry]("", "is_read_only", lambda entry: entry.read_only),
)
_SYNONYMS: Final = Cell[ConfigEntry](
    "",
    "synonyms",
    lambda entry: [
        {"name": each.name, "value": None if entry.is_sensitive else each.value, "source": _source(each.source)}
        for each in entry.synonyms
    ],
)
_DOCUMENTATION: Final = Cell[ConfigEntry]("", "documentation")
LISTED: Final = Report[tuple[ConfigResource, ConfigEntry]](
    Cell("type", "resource_type", lambda row: row[0].type),
    Cell("resource", "resource_name", lambda row: row[0].name, lambda row: row[0].name or DEFAULT_BROKER, shrinks=True),
    *(
        Cell(each.title, each.key, partial(_second, each.of), partial(_second, each.shown), shrinks=each.shrinks)
        for each in _ENTRY
        if each.title != "source"
    ),
    Cell("", "source", lambda row: _source(row[1].source)),
)
CHANGES: Final = Report[_Changed](
    Cell("name", "name", shrinks=True),
    Cell("operation", "operation"),
    Cell(
        "value",
        "value",
        lambda each: None if each.is_sensitive else each.value,
        lambda each: _hidden(each.value, each.is_sensitive),
        shrinks=True,
    ),
    Cell(
        "before",
        "before",
        lambda each: None if each.is_sensitive else each.before,
        lambda each: _hidden(each.before, each.is_sensitive),
        shrinks=True,
    ),
)
