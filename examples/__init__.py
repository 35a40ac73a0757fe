"""Programs that show Barnabas at work."""
