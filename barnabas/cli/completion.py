"""`barnabas completion SHELL`: a shell script for completion, from the files of `completions`, whose commands `docs/generate.py` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "topics", "groups", "profiles"],
        Parameter(help="The shell that reads the script; or what to list, which the script asks for."),
    ],
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Print a script that completes commands, options and names in a shell."""
    if shell in ("bash", "zsh", "fish"):
        folder = Path(__file__).parent / "completions"
        script, commands = ((folder / name).read_text() for name in (shell, "commands"))
        print(script.replace("@COMMANDS@", commands.rstrip()), end="")
        return 0
    if shell == "profiles":
        from barnabas.cli.profiles import Profiles

        print("\n".join(Profiles().known))
        return 0

    async def work() -> None:
        async with connection.admin() as admin:
            names = await admin.list_topics() if shell == "topics" else [g.group_id for g in await admin.list_groups()]
        print("\n".join(sorted(filter(str.isprintable, names))))

    return worked("completion", connection, work())
