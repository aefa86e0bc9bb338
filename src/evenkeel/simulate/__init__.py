"""Simulates scheduling: which nodes have room for a pod (A9), and which of them is best (A10).

`plain_cluster` applies the rules to one node after the other, in plain integers. `array_cluster` applies the same rules
to all nodes at once. The agent does not use this room.
"""
