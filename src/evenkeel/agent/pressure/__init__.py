"""Pressure: seeing it come, answering it in steps, and saying why (A15, A20, B16, E1, E2, E14, E16)."""
