"""`python -m evenkeel` is `evenkeel`."""

from evenkeel.cli.main import entry

entry()
