"""Takes the descriptors of a process away: what is open stays open, and nothing more can be opened."""

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_AGAIN_SECONDS = 0.01


@contextmanager
def starved(pid: int) -> Iterator[None]:
    """The process can open nothing. Where it closes something or raises its limit, as the agent does, that is taken
    too, a moment later. Its hard limit is left alone: only a process with sys_resource could raise it again."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    few = min(_first_free(pid), soft)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))
    is_over = threading.Event()

    def starve(few: int) -> None:
        with suppress(ProcessLookupError, FileNotFoundError):  # it was killed meanwhile
            while not is_over.wait(_AGAIN_SECONDS):
                few = min(
                    few, _first_free(pid)
                )  # never more: it may have been seen with files open for a moment
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))

    thread = threading.Thread(target=starve, args=(few,), name="starve")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def _first_free(pid: int) -> int:
    """The lowest number that it has not open. With this limit it can open nothing, whatever higher numbers it has."""
    numbers = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(numbers) + 1) if number not in numbers)
