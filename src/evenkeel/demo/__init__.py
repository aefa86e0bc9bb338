"""The demonstrations of A25, each on a small node of its own. They start an agent, but are no part of it."""
