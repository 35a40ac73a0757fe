"""Profiles: named sets of client properties in the user's file `config.toml`.

The file is `$XDG_CONFIG_HOME/barnabas/config.toml`, by default `~/.config/barnabas/config.toml`:

    use = "local"                                  # the profile without --profile; optional

    [profile.local]
    "bootstrap.servers" = "localhost:9092"         # Kafka's client properties

A change keeps the comments of the file, and replaces it as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from barnabas.cli.client_properties import WrongCall

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def config_path() -> Path:
    """Where the user's configuration is."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path("~/.config").expanduser()  # the XDG specification ignores others
    return base / "barnabas" / "config.toml"


def check_profile_name(name: str) -> None:
    """Raises WrongCall for a name that a profile cannot have."""
    if not _NAME.fullmatch(name):
        raise WrongCall(f"{name!r} cannot be a profile's name: use up to 64 letters, digits, '.', '_' and '-'")


class Profiles:
    """The profiles of the user's configuration; without a file there are none.

    Attributes:
        path: the file.
        known: the properties of each profile, by its name.
        used: the profile that `barnabas profile use` has chosen, or None.

    Raises WrongCall: the file cannot be read, or its content is not as described above.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_path()
        self.known: dict[str, dict[str, str]] = {}
        self.used: str | None = None
        self._text = ""
        try:
            self._load(self.path.read_text())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:  # not UTF-8, not TOML
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise WrongCall(f"cannot read {self.path}: {reason}") from None

    def _load(self, text: str) -> None:
        import tomllib  # here, because its import takes longer than a small command

        document = tomllib.loads(text)
        tables, used = document.get("profile", {}), document.get("use")
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise WrongCall(f"{self.path}: 'profile' must have a table for each profile, such as [profile.local]")
        if used is not None and not isinstance(used, str):
            raise WrongCall(f"{self.path}: 'use' must be the name of a profile, not {used!r}")
        self._text, self.used = text, used
        self.known = {name: dict(_flat(table)) for name, table in sorted(tables.items())}

    def get(self, name: str) -> dict[str, str]:
        """The properties of a profile. Raises WrongCall if there is none with this name."""
        if name not in self.known:
            others = f"there are {', '.join(self.known)}" if self.known else "there are none yet"
            raise WrongCall(
                f"there is no profile {name!r} in {self.path} ({others}); "
                f"create it: `barnabas profile create {name} -b HOST:PORT`"
            )
        return self.known[name]

    def create(self, name: str, properties: Mapping[str, str]) -> None:
        """Adds a profile and stores the file; the first one is used from now on."""
        import tomlkit

        with self._stored() as document:
            if self.used is None and not self.known:
                document["use"] = name
            if "profile" not in document:
                document["profile"] = tomlkit.table(is_super_table=True)
            inline = isinstance(document["profile"], tomlkit.items.InlineTable)
            table = tomlkit.inline_table() if inline else tomlkit.table()
            for key, value in properties.items():
                table[key] = value
            document["profile"][name] = table

    def use(self, name: str) -> None:
        """Chooses the profile that is used without --profile; stores the file."""
        self.get(name)
        with self._stored() as document:
            document["use"] = name

    def delete(self, name: str) -> None:
        """Removes a profile and stores the file. If it was the used one, none is used from now on."""
        self.get(name)
        with self._stored() as document:
            del document["profile"][name]
            if document.get("use") == name:
                del document["use"]

    @contextmanager
    def _stored(self) -> Iterator[Any]:
        """The document to change; stores the file at the end."""
        from tempfile import NamedTemporaryFile  # here: reading a profile does not need it

        import tomlkit

        document = tomlkit.parse(self._text)
        yield document
        self._text = tomlkit.dumps(document)
        written = ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            target = self.path.resolve()  # a link stays a link
            with NamedTemporaryFile("w", dir=target.parent, prefix=".config-", delete=False) as file:
                written = file.name
                file.write(self._text)
            os.replace(written, target)
        except OSError as error:
            with suppress(OSError):
                os.unlink(written)
            raise WrongCall(f"cannot write {self.path}: {error.strerror or error}") from None
        self._load(self._text)


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """The properties of a profile's table; `bootstrap.servers` without quotes is a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        elif isinstance(value, bool):
            yield f"{before}{key}", str(value).lower()
        else:
            yield f"{before}{key}", ",".join(map(str, value)) if isinstance(value, list) else str(value)
