"""The reactor, timers and shared turns of the event loop."""
