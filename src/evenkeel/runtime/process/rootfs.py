"""What a container sees as its files: built by the container's own process, in a mount namespace of its own, before it
executes its program. Nothing of it exists in the host's mount namespace, so nothing of it can be left behind there."""

from typing import NamedTuple

from evenkeel.errors import EvenkeelError

TERMINATION_LOG = "termination-log"  # in the attempt's directory


class FilesystemRefused(EvenkeelError):
    """The filesystem cannot be made as it is asked for; a sentence says what would have to change."""


class Mount(NamedTuple):
    """A volume, or a part of it, at a path of the container."""

    source: str  # on the host
    target: str
    sub_path: str = ""  # below the source; made if it is not there, and never outside it
    is_read_only: bool = False
    is_ours: bool = True  # an emptyDir, not the host's own files


class FilesystemSpec(NamedTuple):
    """Lists, strings, numbers: it travels to the keeper as JSON (`_asdict`, `spec_from`)."""

    state_directory: str  # masked
    attempt_directory: str  # of the container, below the state directory; it exists
    image: str = ""  # the directory that holds its root filesystem; "" is the host's own
    mounts: tuple[Mount, ...] = ()
    is_read_only: bool = False  # securityContext.readOnlyRootFilesystem
    termination_message_path: str = "/dev/termination-log"  # "" for none
    hidden: tuple[str, ...] = ()  # where else on the host the state directory can be reached
    read_only: tuple[
        str, ...
    ] = ()  # where else on the host the kernel's settings are mounted, as cgroups outside /sys


def as_json(spec: FilesystemSpec) -> dict[str, object]:
    """For a message to the keeper."""
    raise NotImplementedError


def from_json(value: dict[str, object]) -> FilesystemSpec:
    """What `as_json` made."""
    raise NotImplementedError


def enter(spec: FilesystemSpec, *, has_pid_namespace: bool = True) -> None:
    """Makes the filesystem and enters it. The caller is in a mount namespace of its own (and, if `has_pid_namespace`, is
    the first process of a pid namespace), still has root's powers (of the user namespace, if there is one), and has
    opened all it needs of the host's files (FIFOs, cgroup files) before. The working directory afterwards is `/`.

    Raises FilesystemRefused; the process must then end, as what was done is not undone.
    """
    raise NotImplementedError
