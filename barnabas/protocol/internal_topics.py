"""Names of Kafka's internal topics; no other module spells them."""

from __future__ import annotations

from typing import Final

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"  # of share groups (KIP-932), which are not served

# The quorum's log (KIP-595): not in the metadata image, and clients cannot create it.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CLUSTER_METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
CLUSTER_METADATA_FOLDER: Final = f"{CLUSTER_METADATA_TOPIC}-0"  # of its one partition

# Topics that Metadata reports as internal and that clients may not write to.
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})
# Their partition leaders are coordinators. A broker creates them with its own settings.
COORDINATOR_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})
