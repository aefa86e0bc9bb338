"""Pressure on disk and process numbers: watch, collect garbage, and evict."""
