"""What happened: what brokers acknowledged and delivered, and what follows from it.

`recorder.py` notes events inside a broker, `events.py` says what they are, `handles.py` is for tests (`kafka.history`), `checker.py`
finds anomalies in events and logs, `report.py` writes the section of a failed test, `trace.py` keeps events in files, `story.py`
tells what happened to a transactional id.
"""
