"""Requirements of a test that the machine may lack. Then the test is skipped for a user, and fails in CI
(`CI=true`)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.machines import Unavailable


@contextmanager
def needing() -> Iterator[None]:
    """A context that turns `Unavailable` into a skip, or into a failure in CI."""
    try:
        yield
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))
