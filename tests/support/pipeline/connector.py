"""Fetches the jars of Spark's own Kafka connector, one by one, with Maven, into the user's repository.

spark.jars.packages would be the ordinary way; it needs Maven's mirrors to have all that the connector depends on. They
may lack spark-token-provider-kafka-0-10, whose delegation tokens nobody here uses: `token_provider.scala` stands in for
it, compiled by the Scala compiler inside PySpark. The others that it needs come with PySpark.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from importlib import resources
from importlib.metadata import version
from pathlib import Path

CONNECTOR = "4.2.0"  # runs in Spark 4.2 and 4.3
ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
STAND_IN = Path(__file__).with_name("token_provider.scala")
FETCH_SECONDS_MAX = 120
SAID_CHARACTERS = 300


class NoConnector(Exception):
    """The connector cannot be had; the text says why."""


def connector_jars(folder: Path, java: Path | str = "java") -> list[Path]:
    """Where the jars are.

    Args:
        folder: for what is compiled.
        java: that compiles.

    Raises:
        NoConnector: Maven is missing or does not reach them, or the stand-in could not be compiled.
    """
    if shutil.which("mvn") is None:
        raise NoConnector("Maven (mvn) is not installed")
    return [*(fetched(artifact) for artifact in ARTIFACTS), _stand_in(folder, java)]


def fetched(artifact: str) -> Path:
    """A file of Maven's: group:name:version, and if it is no jar, :type:classifier. Raises NoConnector."""
    group, name, version, *rest = artifact.split(":")
    ending = f"-{rest[1]}.{rest[0]}" if rest else ".jar"
    path = _repository().joinpath(*group.split("."), name, version, f"{name}-{version}{ending}")
    if not path.exists():
        command = ["mvn", "-q", "-B", "dependency:get", "-Dtransitive=false", f"-Dartifact={artifact}"]
        _run(command, f"Maven did not fetch {artifact}")
    if not path.exists():
        raise NoConnector(f"Maven fetched {artifact}, but not to {path}")
    return path


def _repository() -> Path:
    return Path(os.environ.get("MAVEN_REPOSITORY", Path.home() / ".m2" / "repository"))


def _stand_in(folder: Path, java: Path | str) -> Path:
    """The stand-in, compiled once for each version of PySpark: the compiler takes ten seconds."""
    digest = hashlib.sha256(STAND_IN.read_bytes() + version("pyspark").encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas-tests"
    kept = cache / f"token-provider-{digest}.jar"
    if not kept.exists():
        jar = folder / "token-provider.jar"
        classes = str(resources.files("pyspark") / "jars" / "*")
        command = [str(java), "-cp", classes, "scala.tools.nsc.Main", "-usejavacp", "-d", str(jar), str(STAND_IN)]
        _run(command, "the stand-in for the token provider could not be compiled")
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"{kept.name}.{os.getpid()}"
        shutil.copy(jar, part)
        part.replace(kept)  # several processes may compile it
    return kept


def _run(command: list[str], failure: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=True)
    except subprocess.CalledProcessError as error:
        raise NoConnector(f"{failure}: {(error.stdout + error.stderr).strip()[-SAID_CHARACTERS:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoConnector(f"{failure}: {error}") from error
