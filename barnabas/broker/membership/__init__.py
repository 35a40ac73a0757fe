"""Broker membership: registration, heartbeats, controlled shutdown."""
