"""What runs in the supervisor process: the parent of all containers, which outlives the agent."""
