"""Root filesystems: `image: host`, a directory, or an archive that is unpacked once."""

from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.process.paths import StatePaths

HOST = "host"


class ImageRefused(EvenkeelError):
    """The image is not one that this runtime can use, or the archive is not sound."""


def refusal(image: str) -> str:
    """Why `image` cannot be run here; empty if it can, as far as its form tells. Pure."""
    raise NotImplementedError


def with_absolute_images(pod: Pod, manifest_directory: str) -> Pod:
    """The pod with `./…` and `../…` images made absolute, relative to the manifest they were written in. Pure."""
    raise NotImplementedError


class Images:
    """The images of one state directory. Threads may use it at the same time; an archive is unpacked once."""

    def __init__(self, paths: StatePaths) -> None: ...

    def directory(self, image: str) -> str:
        """The directory that holds the root filesystem, unpacked if need be; "" is the host's. Blocks: run it in a
        thread. Raises ImageRefused."""
        raise NotImplementedError

    def is_ready(self, image: str) -> bool:
        """Whether `directory` would answer at once, so that it need not go to a thread."""
        raise NotImplementedError

    def remove_unused(self, directories: frozenset[str]) -> None:
        """Removes unpacked archives other than `directories`, and half-unpacked ones."""
        raise NotImplementedError
