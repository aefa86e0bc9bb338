"""Holds what we answer against what the real Kubernetes code answered: `python -m tests.conformance DIR`.

Each area is a module of its own here, with `check(vector_input, expected)`, which returns the differences.
"""
