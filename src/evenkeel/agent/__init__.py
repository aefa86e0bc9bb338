"""The loops that join everything, and the journal on disk."""
