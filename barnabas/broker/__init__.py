"""The broker: server shell, replicas, metadata, coordinators."""
