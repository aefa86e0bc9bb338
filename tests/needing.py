"""What a test needs of the machine and may not find: a reason to skip it for a user, and a failure where all of it is
to be shown (`CI=true`)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.machines import Unavailable


@contextmanager
def needing() -> Iterator[None]:
    """Around what raises `Unavailable`."""
    try:
        yield
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))
