"""The code of the supervisor process: the parent of all containers, which outlives the agent."""
