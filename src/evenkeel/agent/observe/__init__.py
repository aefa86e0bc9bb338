"""Observation of the node for clients: figures, their history, counters, and the history of a pod."""
