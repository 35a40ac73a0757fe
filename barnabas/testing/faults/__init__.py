"""Fault injection on the wire, inside the broker: for any client in any language."""
