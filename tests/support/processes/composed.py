"""The containers of a Compose file under a project name and ports of their own, for tests that have a Docker engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.processes.ports import free_ports

ROOT = Path(__file__).parents[3]
LOCAL_BASE = "python-base:local"
PUBLIC_BASE = "python:3.12-slim"


def _engine_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def _compose() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and not subprocess.run([*command, "version"], capture_output=True).returncode:
            return command
    return None


NEEDS_DOCKER = (
    pytest.mark.skipif(not _engine_answers(), reason="no Docker engine answers here"),
    pytest.mark.skipif(_compose() is None, reason="there is neither `docker compose` nor docker-compose"),
)


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def base_image() -> str:
    """The image to build on: the one named, else what this machine has, else what it can get."""
    named = os.environ.get("BASE_IMAGE")
    if named:
        return named
    for image, command in ((LOCAL_BASE, ["image", "inspect", LOCAL_BASE]), (PUBLIC_BASE, ["pull", PUBLIC_BASE])):
        if not subprocess.run(["docker", *command], capture_output=True, check=False).returncode:
            return image
    pytest.skip(f"no base image: neither {LOCAL_BASE} nor {PUBLIC_BASE}, and no BASE_IMAGE is named")


@cache
def _build_image() -> None:
    """Builds the image `barnabas` of this source tree."""
    base = f"BASE_IMAGE={base_image()}"
    _run("docker", "build", "--quiet", "--network", "host", "--build-arg", base, "-t", "barnabas", ".")


class Composed:
    """The cluster of a Compose file.

    Args:
        file: its name in the source tree.
        environment: variables that it needs.
    """

    def __init__(self, file: str, environment: Mapping[str, str] | None = None) -> None:
        self.ports = free_ports(3)
        ports = {f"BARNABAS_PORT_{n}": str(port) for n, port in enumerate(self.ports, 1)}
        self.environment = {**os.environ, **ports, **(environment or {})}
        self.project = f"{Path(file).stem.replace('.', '-')}-test-{os.getpid()}"
        self._command = [*(_compose() or []), "--file", file, "--project-name", self.project]

    @contextmanager
    def up(self) -> Iterator[Self]:
        """Builds the image and starts the containers; removes them and their volumes at the end."""
        _build_image()
        try:
            self("up", "--detach", "--no-build")
            yield self
        finally:
            self("down", "--volumes", "--timeout", "15")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def __call__(self, *arguments: str) -> str:
        return _run(*self._command, *arguments, environment=self.environment)

    def inspect(self, node_id: int, template: str) -> str:
        """What Docker knows about the container of a node."""
        return _run(
            "docker", "inspect", "--format", template, self("ps", "--quiet", f"broker-{node_id}").strip()
        ).strip()

    def wait_for(self, node_id: int, template: str, wanted: str, seconds_max: float = 60.0) -> None:
        deadline = time.monotonic() + seconds_max
        while (found := self.inspect(node_id, template)) != wanted:
            assert time.monotonic() < deadline, f"{template} of node {node_id} is {found}, not {wanted}"
            time.sleep(0.25)

    def brokers(self) -> dict[int, str]:
        """Host and port of the brokers that serve, as a client on this machine is told them."""
        try:
            metadata = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2}).list_topics(timeout=2)
        except KafkaException:
            return {}
        return {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}

    def wait_for_brokers(self, count: int, seconds_max: float = 60.0) -> dict[int, str]:
        deadline = time.monotonic() + seconds_max
        while len(found := self.brokers()) != count:
            assert time.monotonic() < deadline, f"only {found} serve\n{self('logs', '--tail', '40')}"
            time.sleep(0.25)
        return found

    def left(self) -> str:
        """The containers and volumes of this project that exist."""
        mine = f"name={self.project}"
        return _run("docker", "ps", "--all", "--quiet", "--filter", mine) + _run(
            "docker", "volume", "ls", "--quiet", "--filter", mine
        )


class Started:
    """A container of the image `barnabas` alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def port(self, inside: int) -> str:
        """The address on this machine of a port of the container."""
        return _run("docker", "port", self._name, f"{inside}/tcp").split()[0]

    def write(self, path: str, text: str) -> None:
        """Writes a program into the container, in one step."""
        make = f"cat > {path}.new && chmod 755 {path}.new && mv {path}.new {path}"
        command = ["docker", "exec", "--interactive", self._name, "sh", "-c", make]
        subprocess.run(command, input=text, text=True, timeout=60, check=True)

    def wait_for_line(self, part: str, seconds_max: float = 60.0) -> None:
        """Waits until the output of the container has this text."""
        deadline = time.monotonic() + seconds_max
        while part not in (said := _run("docker", "logs", self._name)):
            assert time.monotonic() < deadline, f"no {part!r} in\n{said}"
            time.sleep(0.1)


@contextmanager
def started_image(*options: str, command: tuple[str, ...] = ()) -> Iterator[Started]:
    """Builds the image, starts a container of it with options of `docker run`, and removes it at the end."""
    _build_image()
    name = f"image-test-{os.getpid()}"
    try:
        _run("docker", "run", "--detach", "--name", name, *options, "barnabas", *command)
        yield Started(name)
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, check=False)
