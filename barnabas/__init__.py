"""Barnabas: a Kafka cluster in Python."""

__version__ = "0.1.0.dev0"
