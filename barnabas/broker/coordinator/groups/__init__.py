"""The group coordinator: groups of both protocols and their committed offsets."""
