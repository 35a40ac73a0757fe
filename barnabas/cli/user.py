"""`barnabas user …`: users that log in with SCRAM: creates them, lists them, deletes them.

The password comes from the variable BARNABAS_USER_PASSWORD, from a terminal without echo, or from the first line of standard input. It is
never printed, and only its salted hash is sent.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final, Literal

from cyclopts import App, Parameter

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.confirmation import Yes, answer, confirm
from barnabas.cli.render import Cell, Json, Report, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command

VARIABLE: Final = "BARNABAS_USER_PASSWORD"
PASSWORD_CHARS_MAX: Final = 1_024
Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
MECHANISMS: Final[tuple[Mechanism, ...]] = ("SCRAM-SHA-256", "SCRAM-SHA-512")

USERS = Report[tuple[str, str, int]](
    Cell("user", "user", lambda row: row[0], shrinks=True),
    Cell("mechanism", "mechanism", lambda row: row[1]),
    Cell("iterations", "iterations", lambda row: row[2]),
)

app = App(
    name="user",
    help_epilogue="Examples:\n\n- `barnabas user create alice`\n- `barnabas user list`\n- `barnabas user delete alice --yes`",
)

Name = Annotated[str, Parameter(help="Name of the user, as in its principal User:NAME.")]
Mechanisms = Annotated[list[Mechanism] | None, Parameter(name="--mechanism", help="May be given several times.")]


@app.command(
    help_epilogue="Examples:\n\n- `barnabas user create alice` asks for the password.\n"
    "- `barnabas user create alice --mechanism SCRAM-SHA-512 --iterations 8192 < password.txt`"
)
@client_command("user create")
async def create(
    name: Name,
    *,
    mechanism: Mechanisms = None,
    iterations: Annotated[int, Parameter(help="Hashes of a login: 4096 to 16384.")] = 4_096,
    password: Annotated[
        str | None, Parameter(help="The password. Other users of this machine can see it: rather leave it out.")
    ] = None,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Create a user, or change the password of one. The default is a credential for SCRAM-SHA-256 and one for SCRAM-SHA-512."""
    if not 4_096 <= iterations <= 16_384:
        raise WrongCall(f"--iterations {iterations}: 4096 to 16384 are possible")
    if password is not None:
        print(
            f"barnabas user create: the list of processes shows --password; use {VARIABLE} or standard input",
            file=sys.stderr,
        )
    secret = _password() if password is None else password
    if not name:
        raise WrongCall("an empty text is no name of a user")
    if name.startswith("User:"):
        raise WrongCall(f"the principal would be User:{name}: write the name alone, {name[5:]!r}")
    if not secret or len(secret) > PASSWORD_CHARS_MAX:
        raise WrongCall(f"the password has {len(secret)} characters: 1 to {PASSWORD_CHARS_MAX} are possible")
    wanted = list(dict.fromkeys(mechanism or MECHANISMS))
    async with connection.admin() as admin:
        for each in wanted:
            await admin.set_scram_password(name, secret, mechanism=each, iterations=iterations)
    if json_:
        print_json([{"user": name, "mechanism": each, "iterations": iterations} for each in wanted])
    else:
        print(f"user {name} can log in with {' and '.join(wanted)}")


@app.command(name=["list", "ls"], help_epilogue="Examples:\n\n- `barnabas user list`\n- `barnabas user list --json`")
@client_command("user list")
async def list_(*, json_: Json = False, connection: Connection = DEFAULT_CONNECTION) -> None:
    """List the users that can log in with SCRAM."""
    async with connection.admin() as admin:
        users = await admin.describe_scram_users()
    rows = [(name, *each) for name, credentials in users.items() for each in credentials.items()]
    USERS.show(rows, json_)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas user delete alice --yes`\n"
    "- `barnabas user delete alice --mechanism SCRAM-SHA-256`"
)
@client_command("user delete")
async def delete(
    name: Name,
    *,
    mechanism: Mechanisms = None,
    yes: Yes = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Delete the credentials of a user: all, or those of --mechanism. Connections that have logged in stay."""
    confirm(yes, f"delete the credentials of user {name}?")
    async with connection.admin() as admin:
        (known,) = (await admin.describe_scram_users([name])).values()
        wanted = mechanism or [each for each in MECHANISMS if each in known]
        for each in dict.fromkeys(wanted):
            await admin.delete_scram_credential(name, each)
    if json_:
        print_json([{"user": name, "mechanism": each} for each in wanted])
    else:
        print(f"user {name} can no longer log in with {' and '.join(wanted)}")


def _password() -> str:
    """Raises WrongCall if two inputs differ, or if nothing was entered."""
    found = os.environ.get(VARIABLE)
    if found is not None:
        return found
    if not sys.stdin.isatty():
        return sys.stdin.readline(PASSWORD_CHARS_MAX + 2).rstrip("\r\n")
    first = answer("password: ", hidden=True)
    if not first:
        raise WrongCall("no password was entered")
    if first != answer("again: ", hidden=True):
        raise WrongCall("the two passwords differ")
    return first.removesuffix("\n")
