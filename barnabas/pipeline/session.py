"""Spark session for the pipeline: Java found, workers on this interpreter, data source registered, pushdown on.
Any other session works, too, after `spark.dataSource.register(BarnabasDataSource)`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.java import java_home
from barnabas.pipeline.spark import BarnabasDataSource

_SPARK_MIN = (4, 2)
_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    app_name: str = "barnabas", *, master: str = "local[2]", jars: Sequence[str | Path] = (), **conf: object
) -> SparkSession:
    """Returns the session of this process: the running one, else a new one.

    Args:
        app_name: name of the application in Spark's UI.
        master: `local[n]` for n tasks at a time, or the address of a cluster.
        jars: jar files for the class path of driver and executors.
        **conf: settings of Spark, with `__` for a dot (`spark__sql__shuffle__partitions=8`), or as `**{"spark.x": …}`.

    Raises:
        PipelineError: Java is missing, Spark is too old, or a jar does not exist.
    """
    if tuple(int(part) for part in spark_version.split(".")[:2]) < _SPARK_MIN:
        raise PipelineError("pyspark", spark_version, "install pyspark 4.2 or newer", "is too old")
    missing = [str(jar) for jar in jars if not Path(jar).is_file()]
    if missing:
        raise PipelineError("jars", ", ".join(missing), "give paths of jar files", "is not there")
    running = SparkSession.getActiveSession()
    if running is None:
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.Builder().appName(app_name).master(master)
    settings: dict[str, object] = dict(_DEFAULTS) if running is None else {}
    if running is None:
        if not master.startswith("local"):  # executors on other hosts must reach the driver
            del settings["spark.driver.bindAddress"], settings["spark.driver.host"]
        quiet = Path(__file__).with_name("log4j2.properties")
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
    if jars:
        paths = [str(Path(jar).resolve()) for jar in jars]
        settings["spark.jars"] = ",".join(paths)
        settings["spark.driver.extraClassPath"] = os.pathsep.join(paths)
    settings |= {name.replace("__", "."): value for name, value in conf.items()}
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    spark = builder.getOrCreate()
    spark.dataSource.register(BarnabasDataSource)
    return spark
