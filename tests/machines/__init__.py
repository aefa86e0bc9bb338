"""The machines that the kernel tests run on: this host, and two small virtual machines.

`python -m tests.machines` runs a command on one of them; docs/testing.md describes it."""

from pathlib import Path

PROJECT = Path(__file__).parents[2]


class Unavailable(Exception):
    """A machine is not available here; the message is the reason and what would change it, in one line."""
