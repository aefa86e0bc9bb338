"""The users of pods with a user namespace (hostUsers: false): a range of the host's numbers for each pod.

As in kubelet, a range has 65536 users and as many groups of the same numbers, and the first range begins at 65536. It
is the pod's from its first start to its removal, and is written down in the pod's directory before it is used: no two
pods of one state directory have the same one, also after a restart of the agent. Ranges that the machine gives to
somebody else are left out.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.runtime.paths import StatePaths, make_directory, names_in, read_json, write_json

LENGTH = 1 << 16  # users of a pod
_RANGES = range(1, 1 << 15)  # below 2^31: some programs take numbers above it for negative ones
_RECORD = "users"  # in the pod's directory
_FIRST = "first"
# The users, groups and ranges of the machine: the field with the first number, and with the amount if there is one.
_TAKEN_BY_OTHERS = (
    ("/etc/subuid", 1, 2),
    ("/etc/subgid", 1, 2),
    ("/etc/passwd", 2, None),
    ("/etc/group", 2, None),
)


class NoRange(EvenkeelError):
    """No users are left for a pod."""


class IdRanges:
    """The ranges of all pods of one state directory. Its methods may be called by any thread."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._of_pod: dict[str, int] = {}
        self._is_read = False

    def take(self, uid: str) -> int:
        """Returns the first user of the pod, which gets a range if it has none. Raises NoRange and OSError."""
        with self._lock:
            self._read()
            if uid not in self._of_pod:
                first = free_range(self._of_pod.values(), taken_by_others())
                make_directory(self._paths.pod(uid))
                write_json(self._paths.pod(uid), _RECORD, {_FIRST: first})
                self._of_pod[uid] = first
            return self._of_pod[uid]

    def release(self, uid: str) -> None:
        """The pod and its directory are gone."""
        with self._lock:
            self._of_pod.pop(uid, None)

    def _read(self) -> None:
        """Reads what former agents have given away. It is done when the first pod asks."""
        if self._is_read:
            return
        for uid in names_in(self._paths.pods):
            first = (read_json(f"{self._paths.pods}/{uid}", _RECORD) or {}).get(_FIRST)
            if isinstance(first, int):
                self._of_pod.setdefault(uid, first)
        self._is_read = True


def free_range(taken: Iterable[int], of_others: Iterable[tuple[int, int]]) -> int:
    """Returns the first number of the lowest range that is free. `of_others` are first number and amount. Pure."""
    numbers = {first // LENGTH for first in taken}
    others = [(first // LENGTH, (first + amount - 1) // LENGTH) for first, amount in of_others if amount > 0]
    for number in _RANGES:
        if number not in numbers and not any(low <= number <= high for low, high in others):
            return number * LENGTH
    raise NoRange(
        "hostUsers: false: no users are left for the pod",
        hint="other pods, /etc/subuid and /etc/subgid have all up to 2^31",
    )


def taken_by_others() -> list[tuple[int, int]]:
    return [
        found
        for path, first, amount in _TAKEN_BY_OTHERS
        for found in ranges_in(read_text(path), first, amount)
    ]


def ranges_in(text: str, first: int, amount: int | None) -> Iterator[tuple[int, int]]:
    """Yields the ranges of a file with colons. `first` and `amount` are the numbers of the fields. Pure."""
    for line in text.splitlines():
        fields = line.split(":")
        with suppress(IndexError, ValueError):
            yield int(fields[first]), 1 if amount is None else int(fields[amount])
