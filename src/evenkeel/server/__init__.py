"""What the agent answers over its socket."""
