"""The audit: every test that uses `kafka` runs again while Kafka is disturbed (`pytest --kafka-audit`).

`watch.py` tells, inside a broker, what the application has achieved; `disturbances.py` decides there and disturbs; `runs.py` runs the
tests again; `table.py` shows what came of it.
"""
