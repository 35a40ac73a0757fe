"""The decisions of a consumer."""
