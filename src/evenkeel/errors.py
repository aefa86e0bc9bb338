"""The errors that Evenkeel raises on purpose: sentences for the person who can fix the cause.

An error about input (a manifest, a flag, a file) says where it is, what was written and what would be right. Code that
reads input collects `Problem`s and reports all of them at once.
"""

import errno
from collections.abc import Sequence

from evenkeel.named_tuples import NamedTuple


class EvenkeelError(Exception):
    """An error that the user can fix. `hint` says how, if the message does not."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


# The kind of a problem with a pod that is valid in Kubernetes, and that this node cannot run.
NODE_RULE = "NodeRule"


class Problem(NamedTuple):
    """One mistake in a document: the path of the field, the line if it is known, and what to write instead.

    `kind` is for tools, `message` is for people. A kind is Kubernetes' name for the reason (`FieldValueInvalid` and
    others), `Decode` if the document does not have the right shape, or `NodeRule` for a rule of this node.
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
    """`text` on one line and without control characters. Its parts may come from an untrusted document."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def reason(error: Exception) -> str:
    """Why a system call or a library failed, as words for a sentence: `no such file or directory`."""
    return (getattr(error, "strerror", "") or str(error)).lower()


_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))


def is_shortage(error: BaseException) -> bool:
    """Whether this process or the machine had no descriptor or memory left for the call. Such an error says nothing
    about a file, a process or a server: neither that it is gone nor that it never was."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def raise_shortage(error: OSError) -> None:
    """Raises the error if it is a shortage."""
    if is_shortage(error):
        raise error
