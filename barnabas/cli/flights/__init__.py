"""The flagship pipeline: a year of flights and weather through Spark, exactly once, through kills (`barnabas demo --spark`)."""
