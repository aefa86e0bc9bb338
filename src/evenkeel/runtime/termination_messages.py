"""The termination message of a container: the end of its file, or of its log."""

import os
from contextlib import suppress

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.log_reading import read_logs

# The bounds of Kubernetes on termination messages.
_LONGEST_MESSAGE_BYTES = 4096
_LOG_MESSAGE_BYTES, _LOG_MESSAGE_LINES = 2048, 80


def last_lines(path: str, *, lines: int = _LOG_MESSAGE_LINES, max_bytes: int = _LOG_MESSAGE_BYTES) -> str:
    """Returns the end of a log, for a termination message."""
    try:
        text = b"".join(line.text + b"\n" * line.is_whole for line in read_logs(path, tail=lines))
    except EvenkeelError:
        return ""
    return text[-max_bytes:].decode(errors="replace")


def termination_message(
    path: str, log_path: str, policy: str, *, is_error: bool, descriptor: int = -1
) -> str:
    """Returns the end of the container's termination message file.

    With `FallbackToLogsOnError`, if that is empty and the container failed, it returns the end of its log. The file
    is the one behind `descriptor`, or the one at `path`.
    """
    message = ""
    with suppress(OSError):
        if descriptor >= 0:
            message = _end_of(descriptor)
        else:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            opened = os.open(path, flags)
            try:
                message = _end_of(opened)
            finally:
                os.close(opened)
    if not message and is_error and policy == "FallbackToLogsOnError":
        return last_lines(log_path)
    return message


def _end_of(descriptor: int) -> str:
    start = max(0, os.fstat(descriptor).st_size - _LONGEST_MESSAGE_BYTES)
    return os.pread(descriptor, _LONGEST_MESSAGE_BYTES, start).decode(errors="replace")
