"""Tests against a real kernel's cgroups: run them with `make kernel` (docs/testing.md)."""
