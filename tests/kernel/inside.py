"""Being inside a container's filesystem: a function of the test is run there, in a process of its own with the powers
that a container has, and its answer is returned. The host it sees is a copy of this one, which a test may change."""

import errno
import json
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor.rootfs import (
    FilesystemRefused,
    FilesystemSpec,
    as_json,
    enter,
    from_json,
)
from evenkeel.runtime.process.supervisor.start_plan import DEFAULT_CAPABILITIES
from tests.kernel.cgroups import Cgroup

NOBODY = 65534


class Killed(Exception):
    """The process ended without an answer."""


def inside(
    spec: FilesystemSpec | Callable[[], FilesystemSpec],
    act: Callable[[], Any],
    *,
    host: Callable[[], object] = lambda: None,
    cgroup: Cgroup | None = None,
    is_user: bool = False,
) -> Any:
    """Runs `act` inside a container's filesystem, and returns its result through JSON. `host` is run before, in a mount
    namespace that takes all its mounts with it when it ends. Raises FilesystemRefused as `enter` did, or Killed.
    `is_user`: by a user who is not root."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        _ending(lambda: _first(spec, act, host, cgroup, is_user=is_user), writable)
    os.close(writable)
    return _answer(child, readable)


def refused_with(act: Callable[[], object]) -> str:
    """The name of the error with which the kernel refuses it; empty if it does not."""
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def write(path: str, text: str = "x") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def read(path: str, count: int = 4096) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, count).decode(errors="replace")
    finally:
        os.close(descriptor)


def _answer(child: int, readable: int) -> Any:
    with os.fdopen(readable, "rb") as answers:
        text = answers.read()
    os.waitpid(child, 0)
    answer = json.loads(text) if text else {"killed": True}
    if "killed" in answer:
        raise Killed
    if "refused" in answer:
        raise FilesystemRefused(str(answer["refused"]))
    assert "failed" not in answer, answer["failed"]
    return answer["returned"]


def _first(
    spec: FilesystemSpec | Callable[[], FilesystemSpec],
    act: Callable[[], Any],
    host: Callable[[], object],
    cgroup: Cgroup | None,
    *,
    is_user: bool,
) -> Any:
    if cgroup:
        for path in cgroup.paths():
            (path / "cgroup.procs").write_text("0")
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    host()
    if is_user:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # Otherwise its own files in /proc would be root's.
        syscalls.set_dumpable(is_dumpable=True)
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"0 {NOBODY} 1")
        write("/proc/self/gid_map", f"0 {NOBODY} 1")
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC)
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        _ending(lambda: _second(spec() if callable(spec) else spec, act), writable)
    os.close(writable)
    return _answer(child, readable)


def _second(spec: FilesystemSpec, act: Callable[[], Any]) -> Any:
    enter(from_json(json.loads(json.dumps(as_json(spec)))))
    syscalls.set_no_new_privileges()
    syscalls.drop_bounding_capabilities(~DEFAULT_CAPABILITIES)
    syscalls.limit_capabilities(DEFAULT_CAPABILITIES)
    return act()


def _ending(act: Callable[[], Any], writable: int) -> None:
    """Sends the result, and ends this process."""
    try:
        answer = {"returned": act()}
    except FilesystemRefused as refused:
        answer = {"refused": str(refused)}
    except Killed:
        answer = {"killed": True}
    except BaseException:  # noqa: BLE001 the test process must not run on here
        answer = {"failed": traceback.format_exc()}
    with suppress(BaseException), os.fdopen(writable, "wb") as file:
        file.write(json.dumps(answer).encode())
    os._exit(0)
