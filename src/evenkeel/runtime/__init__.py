"""Runtimes, which run containers: one small interface and its implementations."""
