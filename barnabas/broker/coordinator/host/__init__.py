"""The host of coordinator shards: what the transaction and the group coordinator share."""
