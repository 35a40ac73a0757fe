"""Raft as in KRaft, without input and output."""
