"""Cluster metadata: records, image, controller."""
