"""The decisions of the active controller, over an image."""
