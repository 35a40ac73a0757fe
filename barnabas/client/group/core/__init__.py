"""The decisions of a member of a group."""
