"""A second copy of each pod that runs, beside its volumes: a journal that is lost or damaged is no reason to end it.

The copies are read only for pods that run and that the journal does not have."""

import os
from typing import NamedTuple

from evenkeel.api.pod import Pod
from evenkeel.journal.codec import Unreadable, from_text, to_text
from evenkeel.journal.records import PodRecord
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.paths import StatePaths, UnsafeName

_NAME = "pod.json"  # no attempt's directory: those end with a number
_LARGEST_BYTES = 16 << 20


class PodCopy(NamedTuple):
    pod: Pod
    source: str


class PodCopies(PodObserver):
    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._written: dict[str, PodCopy] = {}

    def settled(self, uid: str, record: PodRecord | None) -> None:
        if record is None:
            self._written.pop(uid, None)
        elif any(container.is_running for container in record.state.containers.values()):
            self._save(uid, PodCopy(record.pod, record.source))

    def cleaned(self, uid: str) -> None:
        self._written.pop(uid, None)

    def _save(self, uid: str, copy: PodCopy) -> None:
        """For a pod of which something runs: its directory is there. One that cannot be kept is still in the
        journal."""
        known = self._written.get(uid)
        if known is not None and known.pod is copy.pod and known.source == copy.source:
            return
        path = os.path.join(self._paths.pod(uid), _NAME)
        try:
            descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(to_text(copy))
            os.rename(f"{path}.new", path)
        except (OSError, UnicodeEncodeError):
            return
        self._written[uid] = copy

    def read(self, uid: str) -> PodCopy | None:
        try:
            with open(os.path.join(self._paths.pod(uid), _NAME), encoding="utf-8") as file:
                copy = from_text(PodCopy, file.read(_LARGEST_BYTES))
        except (OSError, UnicodeDecodeError, Unreadable, UnsafeName):
            return None
        return copy if copy.pod.metadata.uid == uid else None
