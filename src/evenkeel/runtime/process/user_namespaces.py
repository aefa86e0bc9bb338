"""The user namespaces of pods that ask for one (`hostUsers: false`).

All containers of a pod share it. It is a mount below the memory directory of the pod, so it outlives agent and
supervisor, and it is gone after a reboot. Only a process with one thread can enter a user namespace. So a small program
of util-linux is in it for a moment, while it is mounted.

The pod's own root makes the namespace. The kernel charges everything that is made inside to the quotas of the user that
made the namespace (inotify, namespaces, and others). If that were root of the host, a pod could use up root's quotas.

All functions block, except `path`.
"""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import memory_mounts, syscalls
from evenkeel.runtime.environment import SYSTEM_PATH
from evenkeel.runtime.id_ranges import LENGTH, IdRanges
from evenkeel.runtime.paths import StatePaths

_ECHO = "cat"  # it echoes its input, which shows that it is inside the namespace
_SECONDS = 10.0


class UsersRefused(EvenkeelError):
    """A pod cannot have a user namespace."""


class UserNamespaces:
    """The namespaces of all pods of one state directory."""

    def __init__(self, paths: StatePaths, ranges: IdRanges) -> None:
        self._paths = paths
        self._ranges = ranges
        self._lock = threading.Lock()

    def path(self, uid: str) -> str:
        """Returns the path of the pod's namespace, whether or not it exists."""
        return f"{self._paths.pod_memory(uid)}/.users"

    def prepare(self, uid: str) -> None:
        """Gives the pod its namespace. May be repeated. Raises UsersRefused."""
        try:
            first = self._ranges.take(uid)
            with self._lock:
                path = self.path(uid)
                if not os.path.ismount(path):
                    memory_mounts.make_memory_directory(uid, self._paths)
                    _make(path, first)
        except OSError as error:
            raise UsersRefused(f"hostUsers: false: no user namespace can be made: {reason(error)}") from None

    def first_id(self, uid: str) -> int:
        return self._ranges.take(uid)


def _make(path: str, first: int) -> None:
    # On some machines only a process with this capability may make a user namespace.
    capability = ("--inh-caps=+sys_admin", "--ambient-caps=+sys_admin")
    user = (f"--reuid={first}", f"--regid={first}", "--clear-groups")
    with inhabitant("setpriv", *user, *capability, "unshare", "--user") as pid:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {first} {LENGTH}")
        mount_namespace(f"/proc/{pid}/ns/user", path)


@contextmanager
def inhabitant(*command: str) -> Iterator[int]:
    """Runs a process in the namespaces that the command makes or enters, and yields its number. Raises UsersRefused and
    OSError."""
    with subprocess.Popen(  # noqa: S603 the words are ours, and there is no shell
        [*command, _ECHO],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": SYSTEM_PATH},
        cwd="/",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        timer = threading.Timer(_SECONDS, process.kill)
        timer.start()
        try:
            try:
                process.stdin.write(b"\n")
                is_there = process.stdout.read(1) == b"\n"
            except BrokenPipeError:
                is_there = False
            if not is_there:
                said = process.stderr.read().decode(errors="replace").strip()
                raise UsersRefused(
                    f"hostUsers: false: no user namespace can be made: {said[-300:] or 'no reason given'}",
                    hint="look at /proc/sys/user/max_user_namespaces",
                )
            yield process.pid
        finally:
            timer.cancel()
            process.kill()


def mount_namespace(source: str, path: str) -> None:
    """Mounts a namespace of /proc at the path, which is made. Raises OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400))
    syscalls.mount(source, path, flags=syscalls.MS_BIND)
