"""TLS, users and access control of a cluster on this machine: certificates, settings of the nodes, and files for clients.

The nodes prove themselves to each other, too. Between voters: by their certificates with TLS, else by a password (PLAIN). Between brokers,
on the listener of the clients: as the user `broker`, or by certificate if there are no users.

Invariants: a start never weakens an earlier one's files: passwords and certificates are made once and used again; a password is in no
command line and no log.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from barnabas.broker.controller.core.features import FEATURES, METADATA_VERSION
from barnabas.errors import BarnabasError
from barnabas.runtime.files import write_private
from barnabas.storage.checkpoints import META_PROPERTIES, encode_uuid

if TYPE_CHECKING:
    from barnabas.runtime.certificate_authority import Authority

Sasl = Literal["scram", "plain"]

ADMIN: Final = "admin"  # a super user
CLIENT: Final = "client"  # a user without permissions
BROKER: Final = "broker"  # a super user: the nodes themselves
USERS: Final = (ADMIN, CLIENT, BROKER)
FOLDER: Final = "security"
PASSWORDS_FILE: Final = "passwords.json"
USERS_FILE: Final = "cluster-id-with-users"  # its nodes have been or are being formatted with the SCRAM users
PASSWORD_BYTES: Final = 24
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CONTROLLER: Final = "CONTROLLER"
SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES: Final[Mapping[Sasl, str]] = {
    "plain": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "scram": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class SecurityImpossible(BarnabasError):
    """The cluster cannot be secured as asked; the text says why and what to do."""


@dataclass(frozen=True)
class ClusterSecurity:
    """What a local cluster is to be secured with.

    Attributes:
        directory: of the cluster's data.
        tls: whether all listeners use TLS.
        sasl: how clients prove their user; None: they do not.
        acls: whether access is controlled by ACLs.
    """

    directory: Path
    tls: bool
    sasl: Sasl | None
    acls: bool

    @property
    def folder(self) -> Path:
        """Where certificates, settings and files for clients are."""
        return self.directory / FOLDER

    @property
    def protocol(self) -> str:
        """The security protocol of the clients' listener, also its name."""
        return {
            (False, False): "PLAINTEXT",
            (True, False): "SSL",
            (False, True): "SASL_PLAINTEXT",
            (True, True): "SASL_SSL",
        }[self.tls, self.sasl is not None]

    @property
    def client_file(self) -> Path:
        """The file for clients of the super user, or of anyone if there are no users."""
        return self.folder / f"{ADMIN if self._users() else CLIENT}.properties"

    def _users(self) -> tuple[str, ...]:
        """Users with files: those that log in, or with ACLs alone a super user with a certificate."""
        if self.sasl is not None:
            return ADMIN, CLIENT
        return (ADMIN,) if self.acls else ()

    def prepare(self, nodes: Mapping[int, tuple[Sequence[str], str, str | None]], bootstrap: str) -> dict[int, Path]:
        """Makes what is missing, and returns the file of settings of each node.

        Args:
            nodes: host names for the certificate, address for clients, and address of the controller listener if there is one, by id.
            bootstrap: HOST:PORT of every node, separated by commas.

        Raises:
            CertificatesUnavailable, SecurityImpossible: with a remedy.
            OSError: a file cannot be written.
        """
        from barnabas.runtime.certificate_authority import Authority

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority(self.folder) if self.tls else None
        passwords = self._passwords() if self.sasl is not None or (not self.tls and len(nodes) > 1) else {}
        files = {}
        for number, (hosts, listen, controller_listen) in nodes.items():
            certificate = None if authority is None else authority.issue(f"node-{number}", hosts)
            settings = self._settings(listen, controller_listen, certificate, authority, passwords, sorted(nodes))
            files[number] = self.folder / f"node-{number}.properties"
            write_private(files[number], _text(settings))
        for user in self._users() or (CLIENT,):
            client_settings = self._client_settings(bootstrap, user, authority, passwords)
            write_private(self.folder / f"{user}.properties", _text(client_settings))
        return files

    def format(self, directories: Mapping[int, Path]) -> None:
        """Writes the SCRAM users into new data directories, before their nodes start. Does nothing without SCRAM.

        `directories`: of all nodes, by node id.

        Raises:
            SecurityImpossible: the cluster was made without these users.
            OSError: a file cannot be written.
        """
        if self.sasl != "scram":
            return
        from barnabas.cli.scram_arguments import scram_records
        from barnabas.cli.storage_format import format_directories
        from barnabas.runtime.randomness import SystemRng

        marker = self.folder / USERS_FILE
        if not marker.exists():
            old = [path for path in directories.values() if (path / META_PROPERTIES).exists()]
            if old:
                raise SecurityImpossible(
                    f"the cluster in {self.directory} was made without users: start it without --sasl scram, create "
                    "them with `barnabas user create`, and use its own settings; or name another directory with --data"
                )
            # First, so that a start that was cut off goes on.
            write_private(marker, encode_uuid(SystemRng().uuid()) + "\n")
        cluster_id = marker.read_text().strip()
        arguments = [
            f"{mechanism}=[name={user},password={password}]"
            for user, password in self._passwords().items()
            for mechanism in SCRAM_MECHANISMS
        ]
        for number, path in directories.items():
            if not (path / META_PROPERTIES).exists():
                users = scram_records(arguments, SystemRng())
                level = FEATURES[METADATA_VERSION].initial
                format_directories([path], number, cluster_id, level, SystemRng(), True, users)

    def _passwords(self) -> dict[str, str]:
        """The password of each user; made if there are none."""
        file = self.folder / PASSWORDS_FILE
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            found = {user: secrets.token_urlsafe(PASSWORD_BYTES) for user in USERS}
            write_private(file, json.dumps(found, indent=2) + "\n")
        except ValueError as error:
            raise SecurityImpossible(f"{file} cannot be read: {error}") from None
        if not isinstance(found, dict) or not all(isinstance(found.get(user), str) for user in USERS):
            raise SecurityImpossible(f"{file} lacks a password of {', '.join(USERS)}")
        return found

    def _settings(
        self,
        listen: str,
        controller_listen: str | None,
        certificate: Path | None,
        authority: Authority | None,
        passwords: Mapping[str, str],
        node_ids: Sequence[int],
    ) -> dict[str, str]:
        name = self.protocol
        controllers = "SSL" if self.tls else "SASL_PLAINTEXT"
        settings = {
            "listeners": f"{name}://{listen}"
            + (f",{CONTROLLER}://{controller_listen}" if controller_listen is not None else ""),
            "listener.security.protocol.map": f"{name}:{name},{CONTROLLER}:{controllers}",
            "inter.broker.listener.name": name,
        }
        super_users = [ADMIN, BROKER] if self.sasl is not None else []
        if certificate is not None and authority is not None:
            settings |= {
                **_pem("keystore", certificate),
                **_pem("truststore", authority.file),
                f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required",
            }
            super_users += [f"CN=node-{number}" for number in node_ids]
            if self.sasl is None:
                super_users.append(f"CN={ADMIN}")
                settings[f"listener.name.{name.lower()}.ssl.client.auth"] = "requested"
        elif controller_listen is not None:
            prefix = f"listener.name.{CONTROLLER.lower()}"
            settings |= {
                "sasl.mechanism.controller.protocol": "PLAIN",
                f"{prefix}.sasl.enabled.mechanisms": "PLAIN",
                f"{prefix}.plain.sasl.jaas.config": _jaas("plain", BROKER, passwords, (BROKER,)),
            }
        if self.sasl is not None:
            mechanisms = SCRAM_MECHANISMS if self.sasl == "scram" else ("PLAIN",)
            prefix = f"listener.name.{name.lower()}"
            settings |= {
                f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms),
                "sasl.mechanism.inter.broker.protocol": mechanisms[0],
            }
            known = USERS if self.sasl == "plain" else ()
            for mechanism in mechanisms:
                key = f"{prefix}.{mechanism.lower()}.sasl.jaas.config"
                settings[key] = _jaas(self.sasl, BROKER, passwords, known)
        if self.acls:
            settings |= {
                "authorizer.class.name": AUTHORIZER,
                "super.users": ";".join(f"User:{user}" for user in super_users),
            }
        return settings

    def _client_settings(
        self, bootstrap: str, user: str, authority: Authority | None, passwords: Mapping[str, str]
    ) -> dict[str, str]:
        """Kafka's client properties of one user."""
        settings = {"bootstrap.servers": bootstrap, "security.protocol": self.protocol}
        if authority is not None:
            settings |= _pem("truststore", authority.file)
            if self.sasl is None and user == ADMIN:
                settings |= _pem("keystore", authority.issue(ADMIN))
        if self.sasl is not None:
            settings |= {
                "sasl.mechanism": SCRAM_MECHANISMS[0] if self.sasl == "scram" else "PLAIN",
                "sasl.jaas.config": _jaas(self.sasl, user, passwords, ()),
            }
        return settings


def _pem(store: str, file: Path) -> dict[str, str]:
    return {f"ssl.{store}.type": "PEM", f"ssl.{store}.location": str(file)}


def _jaas(sasl: Sasl, user: str, passwords: Mapping[str, str], known: Sequence[str]) -> str:
    """The JAAS text of a user, and with `known` of the users that a listener with PLAIN accepts."""
    options = [f'username="{user}"', f'password="{passwords[user]}"']
    options += [f'user_{each}="{passwords[each]}"' for each in known]
    return f"{_MODULES[sasl]} required {' '.join(options)};"


def _text(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items())
