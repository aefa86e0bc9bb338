"""Hostile pods, hung daemons and broken disks: one file for each protection. They need a real kernel, as tests/kernel
does."""
