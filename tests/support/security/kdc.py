"""A Kerberos realm for tests: a KDC of Debian's krb5-kdc on 127.0.0.1 with its own files, keytabs and tickets.

Its realm is the default realm of the process while `entered`, and of child processes by `environment`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes.ports import free_port_block

REALM = "BARNABAS.TEST"
SERVICE = f"kafka/localhost@{REALM}"
MODULE = "com.sun.security.auth.module.Krb5LoginModule"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "kvno")
FOLDERS = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
START_SECONDS_MAX = 20


def needs_kerberos() -> None:
    """Skips the test where the package or the programs are missing."""
    if find_spec("gssapi") is None:
        pytest.skip("the package gssapi is missing: pip install -e '.[gssapi]' (Debian: apt-get install libkrb5-dev)")
    for program in PROGRAMS:
        if _found(program) is None:
            pytest.skip(f"{program} is missing (Debian: apt-get install krb5-kdc krb5-admin-server krb5-user)")


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{FOLDERS}")


class Kdc:
    """A realm. `start` makes it with the principal of the brokers and the users alice and bob.

    Attributes:
        keytab: of the brokers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keytab = str(folder / "kafka.keytab")
        self.config = folder / "krb5.conf"
        self._profile = folder / "kdc.conf"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables of programs in this realm, without a ticket cache."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self._profile),
            "KRB5CCNAME": f"FILE:{self.folder / 'no-tickets'}",
            "KRB5RCACHENAME": f"dfl:{self.folder}",
        }

    @property
    def full_environment(self) -> dict[str, str]:
        """The environment of a program in this realm."""
        return {**os.environ, **self.environment}

    def start(self) -> None:
        port = free_port_block(1)
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_realm = false\n dns_lookup_kdc = false\n"
            f" udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
        )
        self._profile.write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{port}\n'
            f"[realms]\n {REALM} = {{\n  database_name = {self.folder}/principal\n  key_stash_file = {self.folder}/stash\n"
            f"  acl_file = {self.folder}/acl\n  max_life = 10h\n }}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master-key")
        for name in (SERVICE, "alice", "bob", "kafka/other"):
            self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", name)
        self.export(SERVICE, self.keytab)
        for name in ("alice", "bob", "kafka/other"):
            self.export(name, self.keytab_of(name))
        program = _found("krb5kdc")
        assert program is not None
        with (self.folder / "kdc.log").open("wb") as log:
            self._process = subprocess.Popen([program, "-n"], env=self.full_environment, stdout=log, stderr=log)
        end = time.monotonic() + START_SECONDS_MAX
        while True:  # until the KDC answers
            try:
                self.tickets("alice")
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def keytab_of(self, name: str) -> str:
        """The keytab of a user."""
        return str(self.folder / f"{name.replace('/', '-')}.keytab")

    @property
    def broker_jaas(self) -> str:
        """The JAAS text of a broker."""
        return f'{MODULE} required useKeyTab=true storeKey=true keyTab="{self.keytab}" principal="{SERVICE}";'

    def client_properties(self, name: str) -> dict[str, str]:
        """Properties of a client with the keytab of a user."""
        keytab = self.keytab_of(name)
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": f'{MODULE} required useKeyTab=true keyTab="{keytab}" principal="{name}@{REALM}";',
        }

    def export(self, name: str, keytab: str) -> None:
        """Adds the keys of a principal to a keytab; its keys stay."""
        self._run("kadmin.local", "-r", REALM, "ktadd", "-norandkey", "-k", keytab, name)

    def tickets(self, name: str, *, service: str | None = None) -> str:
        """A new ticket cache of a user, with a ticket for the service if one is named; returns its path."""
        cache = self.folder / f"tickets-{name.replace('/', '-')}"
        self._run("kinit", "-c", str(cache), "-l", "1h", "-k", "-t", self.keytab_of(name), name)
        if service is not None:
            self._run("kvno", "-c", str(cache), service)
        return str(cache)

    def shifted(self, cache: str, seconds: int) -> str:
        """A copy of a ticket cache whose user believes that the clock of the KDC is ahead by so much. Returns its path."""
        data = Path(cache).read_bytes()
        assert data[:2] == b"\x05\x04", "a ticket cache of another version"
        size = int.from_bytes(data[2:4], "big")
        header = b"\x00\x01\x00\x08" + (seconds & 0xFFFFFFFF).to_bytes(4, "big") + bytes(4)
        path = Path(f"{cache}-shifted-{seconds}")
        path.write_bytes(data[:2] + len(header).to_bytes(2, "big") + header + data[4 + size :])
        return str(path)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This process is in the realm."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _run(self, program: str, *arguments: str) -> None:
        path = _found(program)
        assert path is not None
        subprocess.run(
            [path, *arguments],
            env=self.full_environment,
            capture_output=True,
            check=True,
            timeout=60,
            cwd=self.folder,
        )


@contextmanager
def running_kdc(folder: Path) -> Iterator[Kdc]:
    """A KDC, and this process in its realm. Skips the test where Kerberos is missing."""
    needs_kerberos()
    kdc = Kdc(folder)
    try:
        kdc.start()
        with kdc.entered():
            yield kdc
    finally:
        kdc.stop()
