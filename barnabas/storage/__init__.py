"""Partition logs in Kafka's own file formats, over the Disk port."""
