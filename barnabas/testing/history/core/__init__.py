"""The checker of histories."""
