"""The journal: one SQLite file with the pods, the events and the decisions of a node.

The agent writes it; commands read it, without an agent too.
"""
