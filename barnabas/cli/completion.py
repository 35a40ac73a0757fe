"""`barnabas completion SHELL`: a script with which a shell completes commands, options and names.

The script is in the files of `completions`; `docs/generate.py` writes their list of commands. It asks `barnabas completion topics`
for names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from barnabas.cli.direct_call import print_completion
from barnabas.cli.option import option
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, worked


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "topics", "groups", "profiles"],
        option(help="The shell that reads the script; or what to list, which the script asks for."),
    ],
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Print a script that completes commands, options and names in a shell."""
    if shell in ("bash", "zsh", "fish"):
        return print_completion(shell)
    if shell == "profiles":
        from barnabas.cli.profiles import Profiles

        print("\n".join(Profiles().known))
        return 0

    async def work() -> None:
        async with connection.admin() as admin:
            names = await admin.list_topics() if shell == "topics" else [g.group_id for g in await admin.list_groups()]
        print("\n".join(sorted(filter(str.isprintable, names))))

    return worked("completion", connection, work())
