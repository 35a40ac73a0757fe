"""Connections to brokers, cluster metadata, coordinator look-ups, retries, and the offset requests that all clients share."""
