"""Waits for states of the kernel and of agents: by an event where there is one, else by polling."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

# Generous: an emulated processor shared with others is slow, and a wait that succeeds costs nothing of it.
PATIENCE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.005
# A probe takes processor time from the process that is waited for. On an emulated processor, a request to an agent is
# expensive.
PAUSE_TO_LOOK = 3
LONGEST_PAUSE_SECONDS = 0.5


def eventually(
    probe: Callable[[], T | Literal[False] | None],
    *,
    within_seconds: float = PATIENCE_SECONDS,
    details: Callable[[], str] | None = None,
) -> T:
    """The first true answer of `probe`. If there is none in time, raises AssertionError with its last answer and with
    the text that `details` returns."""
    began = time.monotonic()
    deadline = began + within_seconds
    while not (answer := probe()):
        now = time.monotonic()
        if now > deadline:
            more = f"; {details()}" if details else ""
            raise AssertionError(f"not within {within_seconds:g} s; the last answer was {answer!r}{more}")
        time.sleep(min(max(LOOK_AGAIN_SECONDS, PAUSE_TO_LOOK * (now - began)), LONGEST_PAUSE_SECONDS))
        began = time.monotonic()
    return answer
