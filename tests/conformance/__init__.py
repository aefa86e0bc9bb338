"""Compares our answers with those of the real Kubernetes code: `python -m tests.conformance DIR`.

Each area is a module of its own here, with `check(vector_input, expected)`, which returns the differences.
"""
