"""Probes of running containers: when each is due, and how it is executed."""
