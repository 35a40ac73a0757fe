"""Partition replicas."""
