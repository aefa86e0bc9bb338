"""What containers stand on and what they write, on disk. All of this blocks: run it in a thread."""

import os

from evenkeel.api.pod import Pod
from evenkeel.runtime.attempts import attempts_of, every_attempt, read_json
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.attempt_files import LAUNCH
from evenkeel.runtime.process.rootfs import UPPER


def layers_of(pod: Pod, paths: StatePaths) -> tuple[tuple[str, str], ...]:
    """What the attempts of each container have written over their image: the container's name, and the directory."""
    uid = pod.metadata.uid
    tried = tuple(attempts_of(uid, paths))
    return tuple(
        (name, f"{paths.attempt(uid, name, number)}/{UPPER}")
        for container in pod.spec.every_container
        for name, number in tried
        if name == container.name
    )


def images_in_use(paths: StatePaths) -> frozenset[str]:
    """The directories that containers run from, or are about to. Of one whose plan cannot be read that is not known:
    then it may be any of them."""
    used = set()
    for uid, container, number in every_attempt(paths):
        plan = read_json(paths.attempt(uid, container, number), LAUNCH)
        filesystem = plan.get("filesystem") if plan is not None else None
        if not isinstance(filesystem, dict):
            return _every_image(paths)
        used.add(str(filesystem.get("image", "")))
    return frozenset(used)


def _every_image(paths: StatePaths) -> frozenset[str]:
    try:
        return frozenset(f"{paths.images}/{name}" for name in os.listdir(paths.images))
    except OSError:
        return frozenset()
