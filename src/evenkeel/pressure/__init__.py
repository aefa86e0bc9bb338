"""Shortages of memory, disk, process numbers and CPU: seen early, answered in steps, and explained.

A15, A20, B16, E1, E2, E14, E16. The room knows nothing of the agent: what it needs of it is passed in.
"""
