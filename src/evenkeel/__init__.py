"""Evenkeel keeps promises on an oversubscribed Linux node."""

__version__ = "0.1.0"
