"""Host of coordinator shards, for transactions and groups."""
