"""The only errors Evenkeel raises on purpose: sentences for the person who can mend the cause.

An error from outside (a manifest, a flag, a file) carries where it was seen, what was seen and what would be
right. Everything that reads user input collects `Problem`s and reports all of them at once.
"""

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
    does not even have the right shape, `NodeRule` for a rule of this node's own): tools compare it, people read
    `message`.
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


def reason(error: OSError) -> str:
    """Why a system call failed, in the words of a sentence: `no such file or directory`."""
    return (error.strerror or str(error)).lower()
