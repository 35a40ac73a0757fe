"""`barnabas profile …`: named sets of client properties in the user's configuration."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from barnabas.cli.arguments import key_values
from barnabas.cli.client_properties import ClientProperties, WrongCall, security_arguments
from barnabas.cli.profiles import Profiles, check_profile_name
from barnabas.cli.render import Cell, Json, Report, print_json
from barnabas.cli.session import Connection, local_command

HIDDEN = "[hidden]"  # in place of a secret, as Kafka prints it

app = App(
    name="profile",
    help_epilogue="Examples:\n\n- `barnabas profile create staging -b kafka-1:9092,kafka-2:9092`\n"
    "- `barnabas profile use staging`\n- `barnabas topic list --profile staging`",
)
Name = Annotated[str, Parameter(help="Name of the profile.")]


@app.command(
    help_epilogue="Examples:\n\n- `barnabas profile create staging -b kafka-1:9092,kafka-2:9092`\n"
    "- `barnabas profile create slow -b kafka-1:9092 --set request.timeout.ms=60000 --replace`"
)
@local_command("profile create")
def create(
    name: Name,
    *,
    bootstrap_server: Annotated[
        str | None,
        Parameter(
            name=["--bootstrap-server", "--bootstrap", "-b"], help="HOST:PORT of a broker, or several with commas."
        ),
    ] = None,
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", help="A client property, key=value; may be repeated.")
    ] = (),
    replace: Annotated[bool, Parameter(help="Replace a profile of this name.")] = False,
) -> None:
    """Store a profile. The first one is used from then on."""
    properties = key_values(set_)
    if bootstrap_server is not None:
        properties = {"bootstrap.servers": bootstrap_server, **properties}
    if not properties:
        raise WrongCall("give its brokers with -b HOST:PORT, or client properties with --set")
    check_profile_name(name)
    checked = ClientProperties(properties, f"profile {name!r}")
    security_arguments([checked])
    Connection(bootstrap_server=checked.get("bootstrap.servers")).check_settings("profile create")
    profiles = Profiles()
    if name in profiles.known and not replace:
        raise WrongCall(f"there is a profile {name!r} already; --replace replaces it")
    profiles.create(name, properties)
    for sentence in checked.without_effect:
        print(f"barnabas profile create: {sentence}", file=sys.stderr)
    print(f"created {name}{', the profile in use' if profiles.used == name else ''}")


@app.command(name=["list", "ls"], help_epilogue="Examples:\n\n- `barnabas profile list`")
@local_command("profile list")
def list_(*, json_: Json = False) -> None:
    """List the profiles and mark the one in use."""
    profiles = Profiles()
    rows = [_document(profiles, name) for name in profiles.known]
    PROFILES.show(rows, json_, empty="there are no profiles")


@app.command(help_epilogue="Examples:\n\n- `barnabas profile use staging`")
@local_command("profile use")
def use(name: Name) -> None:
    """Use a profile from now on where --profile and BARNABAS_PROFILE name none."""
    Profiles().use(name)
    print(f"using {name}")


@app.command(help_epilogue="Examples:\n\n- `barnabas profile show`\n- `barnabas profile show staging --json`")
@local_command("profile show")
def show(
    name: Annotated[str | None, Parameter(help="Name of the profile [default: the one in use].")] = None,
    *,
    json_: Json = False,
) -> None:
    """Show the client properties of a profile, without its secrets."""
    profiles = Profiles()
    shown = name or profiles.used
    if shown is None:
        raise WrongCall(f"no profile is in use in {profiles.path}; name one")
    document = _document(profiles, shown)
    if json_:
        print_json(document)
        return
    print(f"{shown}{'  in use' if document['in_use'] else ''}")
    for key, value in document["properties"].items():
        print(f"  {key}={value}")


@app.command(help_epilogue="Examples:\n\n- `barnabas profile delete staging`")
@local_command("profile delete")
def delete(name: Name) -> None:
    """Delete a profile."""
    Profiles().delete(name)
    print(f"deleted {name}")


def _document(profiles: Profiles, name: str) -> dict[str, Any]:
    properties = {key: HIDDEN if _is_secret(key) else value for key, value in sorted(profiles.get(name).items())}
    return {"name": name, "in_use": name == profiles.used, "properties": properties}


PROFILES = Report[dict[str, Any]](
    Cell(" ", text=lambda row: "*" if row["in_use"] else ""),
    Cell("profile", "name"),
    Cell("", "in_use"),
    Cell("brokers", text=lambda row: row["properties"].get("bootstrap.servers"), shrinks=True),
    Cell("", "properties"),
)


def _is_secret(key: str) -> bool:
    return key.endswith(("password", "passphrase", "secret", "jaas.config", "token", "keystore.key", "user.info"))
