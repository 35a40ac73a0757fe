"""The active controller: decisions over the metadata image, and their order."""
