"""Pods from files: what the given files and directories hold now, and again whenever that changes.

A file that cannot be read, or holds anything wrong, changes nothing: the pods it had before stay as they are. Only a
file that is gone, or one without fault that no longer holds the pod, takes a pod away.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.pod import Pod
from evenkeel.api.profile import Profile


class PodFile(NamedTuple):
    """One file. With `problems`, `pods` are those it held when it was last without fault."""

    path: str  # absolute
    pods: tuple[Pod, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class FileSet(NamedTuple):
    """Everything there is now. No pod stands in it twice."""

    files: tuple[PodFile, ...] = ()  # in the order given, within a directory by name
    notes: tuple[str, ...] = ()  # of what concerns no single file, as that changes are noticed late


class PodFiles:
    """`async for files in PodFiles(…)`: at once what there is, then all of it anew after each change. `before` are the
    pods that each file (absolute path) held when a former agent read it last, from the journal."""

    def __init__(
        self,
        paths: Sequence[str],
        profile: Profile = Profile.DOCUMENTS,
        before: Mapping[str, Sequence[Pod]] = MappingProxyType({}),
    ) -> None: ...

    async def scan(self) -> FileSet:
        """What there is now, read in a thread; files that have not changed are not read again."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[FileSet]:
        raise NotImplementedError

    def close(self) -> None: ...
