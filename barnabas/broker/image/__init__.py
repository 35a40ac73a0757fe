"""The metadata image: records, replay, snapshots, and the published image."""
