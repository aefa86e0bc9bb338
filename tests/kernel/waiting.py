"""Waiting for what the kernel does in its own time: by an event where there is one, else by looking again."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

# Generous: an emulated processor shared with others is slow, and a wait that succeeds costs nothing of it.
PATIENCE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.005
# Who looks takes the processor from whom it waits for, and where that is emulated a question to an agent is dear.
PAUSE_TO_LOOK = 3
LONGEST_PAUSE_SECONDS = 0.5


def eventually(
    probe: Callable[[], T | Literal[False] | None],
    *,
    within_seconds: float = PATIENCE_SECONDS,
    told: Callable[[], str] | None = None,
) -> T:
    """The first true answer of `probe`. If there is none in time, an AssertionError with its last answer, and with what
    `told` then says of the matter."""
    began = time.monotonic()
    deadline = began + within_seconds
    while not (answer := probe()):
        now = time.monotonic()
        if now > deadline:
            more = f"; {told()}" if told else ""
            raise AssertionError(f"not within {within_seconds:g} s; the last answer was {answer!r}{more}")
        time.sleep(min(max(LOOK_AGAIN_SECONDS, PAUSE_TO_LOOK * (now - began)), LONGEST_PAUSE_SECONDS))
        began = time.monotonic()
    return answer
