"""A schema registry as a process: Apicurio, from Maven, which keeps its schemas in a topic of the cluster."""

from __future__ import annotations

import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.elsewhere import wait_until
from tests.support.pipeline.connector import fetched
from tests.support.processes.ports import free_ports

ARTIFACT = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"


@contextmanager
def served_registry(folder: Path, bootstrap: str, java: Path) -> Iterator[str]:
    """The URL of its API as of Confluent's Schema Registry. Raises NoConnector if Maven does not reach it."""
    archive = fetched(ARTIFACT)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (port,) = free_ports(1)
    (program,) = folder.glob("*-runner.jar")
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": bootstrap,
    }
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                str(java),
                "-Xmx400m",
                "-XX:TieredStopAtLevel=1",
                *(f"-D{name}={value}" for name, value in settings.items()),
                "-jar",
                str(program),
            ],
            stdout=log,
            stderr=log,
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{url}/subjects", timeout=5):
                return True
        except OSError:
            return False

    try:
        wait_until(answers, "the registry's first answer", 180)
        yield url
    finally:
        process.kill()
        process.wait()
