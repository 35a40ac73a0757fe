"""Faults on the wire, decided in the broker: for any client in any language.

`rule.py` says what a fault is, `table.py` applies it inside a broker, `commands.py` brings it there, `handles.py` is for tests.
"""
