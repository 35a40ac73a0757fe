"""The metrics and the health of a node over HTTP: `endpoint` serves them, `exposition` writes them, the other modules collect them."""
