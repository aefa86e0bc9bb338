"""A pod's lifecycle: what to start, to stop and to report, as functions of its state."""
