"""What pods have on disk, and what of it nobody needs any more. All of this blocks: run it in a thread."""

import os
from collections.abc import Iterable

from evenkeel.api.pod import Pod
from evenkeel.runtime.interface import Directories
from evenkeel.runtime.paths import StatePaths

_LOG = ".log"
_LOGS_KEPT = 2  # of a container's attempts: this one's, and that of the one before


def directories_of(pod: Pod, layers: Iterable[tuple[str, str]], paths: StatePaths) -> Directories:
    """Those of one pod; its containers' layers are where their runtime has them. Volumes in memory and directories of
    the host are no disk of its own."""
    metadata = pod.metadata
    logs = tuple(
        (
            container.name,
            paths.container_logs(metadata.namespace, metadata.name, metadata.uid, container.name),
        )
        for container in pod.spec.every_container
    )
    volumes = tuple(
        (volume.name, paths.volume(metadata.uid, volume.name))
        for volume in pod.spec.volumes
        if volume.empty_dir is not None and not volume.is_in_memory
    )
    return Directories(tuple(layers), logs, volumes)


def remove_old_logs(paths: StatePaths) -> None:
    """Log files that were rotated away, and those of attempts before the last but one."""
    for pod in _names(paths.logs):
        for container in _names(f"{paths.logs}/{pod}"):
            directory = f"{paths.logs}/{pod}/{container}"
            names = _names(directory)
            current = sorted(
                int(number)
                for name in names
                if name.endswith(_LOG) and (number := name.removesuffix(_LOG)).isdecimal()
            )
            kept = {f"{number}{_LOG}" for number in current[-_LOGS_KEPT:]}
            for name in names:
                if name not in kept:
                    _unlink(f"{directory}/{name}")


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # gone already, or none of ours
