"""The journal: one SQLite file with the pods, the events and the decisions of a node.

The agent writes it. Commands read it, even if no agent is running.
"""
