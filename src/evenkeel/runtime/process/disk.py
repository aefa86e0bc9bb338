"""What pods have on disk, and what of it nobody needs any more. All of this blocks: run it in a thread."""

import os

from evenkeel.api.pod import Pod
from evenkeel.runtime.interface import Directories
from evenkeel.runtime.process import attempts
from evenkeel.runtime.process.paths import StatePaths
from evenkeel.runtime.process.rootfs import UPPER
from evenkeel.runtime.process.volumes import IN_MEMORY

_LOG = ".log"
_LOGS_KEPT = 2  # of a container's attempts: this one's, and that of the one before


def directories_of(pod: Pod, paths: StatePaths) -> Directories:
    """Those of one pod. Volumes in memory and directories of the host are no disk of its own."""
    metadata = pod.metadata
    layers = []
    logs = []
    tried = tuple(attempts.attempts_of(metadata.uid, paths))
    for container in pod.spec.every_container:
        layers += [
            (name, f"{paths.attempt(metadata.uid, name, number)}/{UPPER}")
            for name, number in tried
            if name == container.name
        ]
        logs.append(
            (
                container.name,
                paths.container_logs(metadata.namespace, metadata.name, metadata.uid, container.name),
            )
        )
    volumes = tuple(
        (volume.name, paths.volume(metadata.uid, volume.name))
        for volume in pod.spec.volumes
        if volume.empty_dir is not None and volume.empty_dir.medium != IN_MEMORY
    )
    return Directories(tuple(layers), tuple(logs), volumes)


def images_in_use(paths: StatePaths) -> frozenset[str]:
    """The directories that containers run from, or are about to. Of one whose plan cannot be read that is not known:
    then it may be any of them."""
    used = set()
    for uid, container, number in attempts.every_attempt(paths):
        plan = attempts.read_json(paths.attempt(uid, container, number), attempts.LAUNCH)
        filesystem = plan.get("filesystem") if plan is not None else None
        if not isinstance(filesystem, dict):
            return frozenset(f"{paths.images}/{name}" for name in _names(paths.images))
        used.add(str(filesystem.get("image", "")))
    return frozenset(used)


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
