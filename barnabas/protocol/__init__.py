"""Kafka's wire protocol: declarations, codecs, record batches, connection framing."""
