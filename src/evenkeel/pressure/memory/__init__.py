"""Memory pressure: watch, decide, kill and mitigate, within milliseconds of the event."""
