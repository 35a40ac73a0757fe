"""Security of a node: principals, access rights, authentication of connections."""
