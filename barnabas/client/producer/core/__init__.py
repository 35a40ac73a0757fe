"""The decisions of a producer."""
