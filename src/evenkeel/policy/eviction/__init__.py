"""Eviction: thresholds, ranking, the decision and its message (A20, B16). Functions of a snapshot."""
