"""The only errors Evenkeel raises on purpose: sentences for the person who can mend the cause.

An error from outside (a manifest, a flag, a file) carries where it was seen, what was seen and what would be
right. Everything that reads user input collects `Problem`s and reports all of them at once.
"""

import errno
from collections.abc import Sequence
from typing import NamedTuple


class EvenkeelError(Exception):
    """Something the user can mend. `hint` says how, where the message alone does not."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class Problem(NamedTuple):
    """One thing wrong in a document: where (field path, and the line where known), what, and the mend.

    `kind` is Kubernetes' own name for the reason (`FieldValueInvalid` and its like; `Decode` where the document
    does not even have the right shape): tools compare it, people read `message`.
    """

    field: str
    message: str
    kind: str = "FieldValueInvalid"
    source: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = ":".join(part for part in (self.source, str(self.line or "")) if part)
        return _printable(": ".join(part for part in (where, self.field, self.message) if part))


class InvalidInput(EvenkeelError):
    """Every problem of one input, never only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def _printable(text: str) -> str:
    """`text` on one line and without control characters: paths and values can hold what a stranger wrote."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


CGROUP_REMOVED = "the cgroup was removed"

_WORDS = {
    errno.ENOENT: "the cgroup is not there, or its kernel has no such file",
    errno.ENODEV: CGROUP_REMOVED,
    errno.ENOSPC: "there are too many watches: raise them with sysctl -w fs.inotify.max_user_watches=65536",
    errno.EMFILE: "there are too many open files or inotify instances: raise them with ulimit -n and"
    " sysctl -w fs.inotify.max_user_instances=512",
    errno.EOPNOTSUPP: "the kernel was started without it: add psi=1 to its command line",
}


def reason(error: OSError) -> str:
    """Why it did not work, and what would help where that is known."""
    known = _WORDS.get(error.errno or 0)
    return known or (error.strerror or str(error)).lower()
