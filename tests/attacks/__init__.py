"""Hostile pods, hung daemons and broken disks: one file a wall. They need a real kernel, as tests/kernel does."""
