"""Metrics and health of a node over HTTP."""
