"""The world around the brokers: cuts and slow links, failing disks, lost page caches, coordinators and groups that move.

`network.py`, `link.py` and `pipe.py` shape connections inside a broker, `disks.py` its files, `placement.py` moves coordinators,
`groups.py` acts on groups, `commands.py` brings all that into a broker, `handles.py` is for tests.
"""
