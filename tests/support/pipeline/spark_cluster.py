"""A small cluster of Spark itself: a master and workers with an address each, for what Spark does not do in `local[n]`.

Speculation is such a thing: it starts the second copy of a task on another host only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark

from barnabas.pipeline.java import java_home

MASTER_HOST = "127.0.0.1"
READY_SECONDS_MAX = 120.0  # two JVMs on a busy machine
CORES = 4  # of a worker
# Most of what a short session costs is the compiler for long runs.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FOR_DRIVER = {"spark.driver.host": MASTER_HOST, "spark.driver.bindAddress": MASTER_HOST}  # settings of a session


class SparkCluster:
    """Runs for as long as the block lasts.

    Args:
        folder: for logs and the files of executors.
        environment: of the executors and their Python processes.
        hosts: one worker each.

    Attributes:
        url: what `master` is to be.
    """

    def __init__(
        self, folder: Path, environment: dict[str, str], hosts: Sequence[str] = ("127.0.0.2", "127.0.0.3")
    ) -> None:
        self.folder = folder
        self.url = ""
        self._environment = {
            **environment,
            "JAVA_HOME": str(java_home()),
            "JAVA_TOOL_OPTIONS": JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
        }
        self._hosts = hosts
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SparkCluster:
        self.folder.mkdir(parents=True)
        try:
            self._start("master.Master", "--host", MASTER_HOST, "--port", "0", name="master")
            self.url = self._await("master", r"Starting Spark master at (spark://\S+)")
            for number, host in enumerate(self._hosts):
                name, place = f"worker-{number}", str(self.folder / f"work-{number}")
                size = ["--cores", str(CORES), "--memory", "1g", "--work-dir", place]
                self._start("worker.Worker", "--host", host, *size, self.url, name=name)
            for number in range(len(self._hosts)):
                self._await(f"worker-{number}", r"Successfully registered with master (\S+)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):  # a worker that is told to end takes its executors along
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)

    def _start(self, which: str, *arguments: str, name: str) -> None:
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(launcher), f"org.apache.spark.deploy.{which}", "--webui-port", "0", *arguments]
        with (self.folder / name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self._environment)
            )

    def _await(self, name: str, said: str) -> str:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            log = (self.folder / name).read_text(errors="replace")
            found = re.search(said, log)
            if found:
                return found[1]
            assert all(process.poll() is None for process in self._processes), log[-3000:]
            assert time.monotonic() < deadline, f"{name} has not said {said!r}:\n{log[-3000:]}"
            time.sleep(0.1)
