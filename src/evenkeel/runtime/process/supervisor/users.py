"""The users of a container whose pod has a user namespace (hostUsers: false).

The namespace is made before (`process.user_namespaces`). The container's own process makes the container's filesystem
as the host's root, and enters the namespace afterwards. So all mounts, and all other namespaces but the network, belong
to the host, and no process in the container has any right over them.

Files of the pod keep their owners on disk. An idmapped mount shows them in the container: what belongs to user N on
disk belongs to user N of the namespace. So the same files can be shared by pods with other namespaces, or with none.
The host's own files are not mapped: to them, root in the container is a stranger.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor.mount_points import WHOLE, FilesystemRefused

_MAP = syscalls.AT_RECURSIVE | syscalls.AT_EMPTY_PATH


class Users:
    """The users of one container. Without a namespace, its users are the host's."""

    def __init__(self, namespace: str = "", first: int = 0) -> None:
        """`first` is the user and the group on the host that are root in the namespace. Raises EvenkeelError."""
        self.first = first
        self._descriptor = -1
        if namespace:
            try:
                self._descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                raise EvenkeelError(
                    f"the pod's user namespace {namespace} cannot be entered: {reason(error)}"
                ) from None

    @property
    def are_own(self) -> bool:
        return self._descriptor >= 0

    def map(self, tree: int, what: str, source: str) -> None:
        """Maps the owners of files in a mount that is not attached yet. `what` is its name in messages."""
        if not self.are_own:
            return
        try:
            syscalls.mount_setattr(
                "", add=syscalls.MOUNT_ATTR_IDMAP, flags=_MAP, dir_fd=tree, users=self._descriptor
            )
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            raise FilesystemRefused(
                f"hostUsers: false: {what}: the filesystem of {source} cannot show files with other owners (idmapped "
                "mounts) in this kernel",
                hint="ext4, xfs and btrfs can; memory, which Secrets need too, from Linux 6.3 on",
            ) from None

    def bind(self, source: str, target: str, what: str) -> None:
        """Mounts the directory `source` at `target`, with mapped owners."""
        tree = syscalls.open_tree(source, WHOLE)
        self.map(tree, what, source)
        syscalls.move_mount(tree, syscalls.AT_FDCWD, target)
        os.close(tree)

    @contextmanager
    def owning(self) -> Iterator[None]:
        """Files that are made in this context belong to the container's root."""
        if not self.are_own:
            yield
            return
        syscalls.keep_capabilities()
        syscalls.set_file_owner(self.first, self.first)
        try:
            yield
        finally:
            syscalls.set_file_owner(0, 0)

    def enter(self) -> None:
        """Enters the namespace as its root, with all capabilities in it and none outside it."""
        if not self.are_own:
            return
        try:
            syscalls.setns(self._descriptor, syscalls.CLONE_NEWUSER)
        except OSError as error:
            raise EvenkeelError(f"the pod's user namespace cannot be entered: {reason(error)}") from None
        os.close(self._descriptor)
        become_root()


HOST_USERS = Users()


def become_root() -> None:
    """Becomes root of a user namespace that was entered with a user that it does not have."""
    os.setgroups(())
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
