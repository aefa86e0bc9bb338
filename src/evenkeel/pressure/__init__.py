"""Shortages of memory, disk, process numbers and CPU: detected early, handled in steps, and explained.

A15, A20, B16, E1, E2, E14, E16. This package knows nothing of the agent. The agent passes in everything it needs.
"""
