"""Has PySpark's daemons import what every worker that is forked from them needs: a life of a driver begins sooner.

Python runs it at its start, since `chaos_driver` puts this folder on the path of the processes below it.
"""

from __future__ import annotations

import sys

if "pyspark.daemon" in sys.orig_argv:
    import pandas
    import pyarrow.parquet

    from tests.support.pipeline import chaos_points

    PRELOADED = (pandas, pyarrow.parquet, chaos_points)
