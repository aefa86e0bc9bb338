"""Copies of accepted pods beside the journal, so that a lost or damaged journal loses no pod.

A copy is kept from the acceptance of a pod until its end, and says whether the pod was deleted. Copies are written a
moment after the journal, so that no start waits for them.
"""

import asyncio
import logging
import os
from contextlib import suppress

from evenkeel.agent.desired_pods import SUCCESSOR
from evenkeel.api.decode import Findings, decode
from evenkeel.api.pod import Pod
from evenkeel.errors import reason
from evenkeel.host.files import write_own
from evenkeel.journal.codec import Unreadable, from_text, to_text
from evenkeel.journal.columns import opened, sealed
from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.eviction_backoff import comes_back
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.paths import StatePaths, UnsafeName, checked

log = logging.getLogger(__name__)

_SUFFIX = ".json"
_LARGEST_BYTES = 16 << 20
_DELAY_SECONDS = 0.05
_RETRY_SECONDS = 5.0


class PodCopy(NamedTuple):
    pod: Pod
    source: str
    deleted_at: float | None = None
    deletion_grace_seconds: float | None = None
    successor: Pod | None = None  # replaces the pod when it has ended


class PodCopies(PodObserver):
    """For the agent's loop."""

    def __init__(self, paths: StatePaths, journal: Journal) -> None:
        self._directory = paths.copies
        self._journal = journal
        self._known: dict[str, PodCopy] = {}  # as they are on disk, or will be soon
        self._on_disk = self._list()
        self._due: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""

    def settled(self, uid: str, record: PodRecord | None) -> None:
        if record is None or _is_over(record):
            self.drop(uid)
            return
        copy, known = self._copy_of(record), self._known.get(uid)
        if known is None or known.pod is not copy.pod or known[1:] != copy[1:]:
            self._known[uid] = copy
            self._write_soon(uid)

    def drop(self, uid: str) -> None:
        """Removes the copy: its pod has ended, or cannot be recovered."""
        if self._known.pop(uid, None) is not None or uid in self._on_disk:
            self._write_soon(uid)

    def uids(self) -> frozenset[str]:
        """The pods that have copies on disk, readable or not."""
        return frozenset(self._on_disk)

    def read(self, uid: str) -> PodCopy | None:
        """The copy on disk; None if there is none, or it is damaged."""
        try:
            with open(self._path(uid), encoding="utf-8") as file:
                copy = from_text(PodCopy, opened(file.read(_LARGEST_BYTES)))
        except (OSError, UnicodeDecodeError, Unreadable, UnsafeName):
            return None
        if copy.pod.metadata.uid != uid:
            return None
        self._known[uid] = copy
        return copy

    def flush(self) -> None:
        """Writes the copies that are due."""
        if self._timer is not None:
            self._timer.cancel()
            self._write()

    def _list(self) -> set[str]:
        try:
            names = os.listdir(self._directory)
        except OSError:
            return set()
        return {name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)}

    def _copy_of(self, record: PodRecord) -> PodCopy:
        state = record.state
        if state.deleted_at is None:
            return PodCopy(record.pod, record.source)
        successor = self._successor(record.uid)
        return PodCopy(record.pod, record.source, state.deleted_at, state.deletion_grace_seconds, successor)

    def _successor(self, uid: str) -> Pod | None:
        try:
            kept = self._journal.value(SUCCESSOR + uid)
        except JournalError:
            return None
        findings = Findings()
        pod = decode(Pod, kept.get("pod"), findings) if isinstance(kept, dict) else None
        return None if findings.problems else pod

    def _write_soon(self, uid: str) -> None:
        self._due[uid] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._write)

    def _write(self) -> None:
        """Writes the copies that are due. A copy that cannot be written now is tried again later."""
        self._timer = None
        try:
            for uid in tuple(self._due):
                with suppress(UnsafeName):  # such a pod is never started
                    self._write_one(uid)
                del self._due[uid]
        except OSError as error:
            self._timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._write)
            if reason(error) != self._problem:
                log.warning("copies of pods cannot be written to %s: %s", self._directory, reason(error))
            self._problem = reason(error)
        else:
            self._problem = ""

    def _write_one(self, uid: str) -> None:
        path, copy = self._path(uid), self._known.get(uid)
        if copy is None:
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._on_disk.discard(uid)
            return
        content = sealed(to_text(copy)).encode("ascii")
        try:
            write_own(f"{path}.new", content)
        except FileNotFoundError:
            os.mkdir(self._directory, 0o700)
            write_own(f"{path}.new", content)
        os.rename(f"{path}.new", path)
        self._on_disk.add(uid)

    def _path(self, uid: str) -> str:
        return f"{self._directory}/{checked(uid, 'pod UID')}{_SUFFIX}"


def _is_over(record: PodRecord) -> bool:
    """Whether the pod has ended for good. An evicted pod comes back, and one that found no room is tried again."""
    state = record.state
    return (
        record.is_admitted
        and state.verdict is not None
        and state.deleted_at is None
        and not state.is_alive
        and not comes_back(record)
    )
