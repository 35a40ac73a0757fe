"""The demonstration `make demo-spark`: a year of flights and weather through Spark, exactly once, through kills."""
