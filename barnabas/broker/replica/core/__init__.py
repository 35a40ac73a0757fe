"""A replica and what it decides."""
