"""Broker connections, cluster metadata, coordinator look-ups, retries, and offset requests of all clients."""
