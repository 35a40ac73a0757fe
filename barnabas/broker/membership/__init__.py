"""A broker's life in the cluster: registration, heartbeats, controlled shutdown."""
