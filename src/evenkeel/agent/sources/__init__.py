"""Pods from files: which files there are, when they change, and what they hold."""
