"""The settings of a node, its topics and its groups."""
