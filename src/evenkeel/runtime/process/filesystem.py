"""From a pod's manifest to the filesystem of one of its containers. Runs in the agent, before a start."""

from typing import NamedTuple

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.runtime.process.paths import StatePaths
from evenkeel.runtime.process.rootfs import FilesystemSpec


class Surroundings(NamedTuple):
    """Places on the host that containers must not reach as they are."""

    hidden: tuple[str, ...] = ()  # other ways to the state directory
    read_only: tuple[str, ...] = ()  # cgroups and the like, mounted elsewhere than in /sys


def surroundings(paths: StatePaths) -> Surroundings:
    """As /proc/self/mountinfo has them now. Once a pod is often enough."""
    raise NotImplementedError


def filesystem_spec(
    pod: Pod,
    container: Container,
    attempt: int,
    paths: StatePaths,
    *,
    image_directory: str,  # of `images.Images.directory`; "" is the host
    around: Surroundings,
) -> FilesystemSpec:
    """Pure: the pod's volumes are where `volumes.prepare` puts them."""
    raise NotImplementedError
