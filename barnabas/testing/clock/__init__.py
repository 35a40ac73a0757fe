"""The clock of a cluster, which a test moves forward: `handles.py` for tests, `travel.py` and `commands.py` inside a broker."""
