"""Killing processes and waiting for their end; and the placeholder process that keeps a systemd scope alive."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.kernel_refusals import refusal
from evenkeel.errors import is_shortage

_WAIT_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)


def waits(seconds: float) -> Iterator[None]:
    """Yields at once, and again after longer and longer waits, until `seconds` have passed: for polling."""
    deadline = time.monotonic() + seconds
    pauses = iter(_WAIT_SECONDS)
    yield
    while time.monotonic() < deadline:
        time.sleep(next(pauses, _WAIT_SECONDS[-1]))
        yield


def await_deaths(pids: Sequence[int], seconds: float) -> None:
    """Returns when all of them are dead, or `seconds` have passed. The kernel notifies through a pidfd of each."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        except OSError:  # of another PID namespace; too many open files; a kernel before 5.3
            time.sleep(min(left, _WAIT_SECONDS[-1]))
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(left * 1000)
        finally:
            os.close(descriptor)


def kill_process(pid: int, path: str) -> None:
    """Sends SIGKILL to a process of the cgroup at `path`."""
    if pid <= 0:  # in another PID namespace; kill(0) would kill this process
        return
    with suppress(ProcessLookupError):
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError as error:
            raise refusal(error, "end the processes of", path) from None


def is_dead(pid: int) -> bool:
    """Whether the process is gone, or is a zombie. One that cannot be looked at, because no descriptor is left, is not
    known to be."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return pid > 0 and not is_shortage(error)
    try:
        # The name in brackets may hold anything; the state follows the last bracket.
        return os.read(descriptor, 4096).rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError as error:
        return not is_shortage(error)
    finally:
        os.close(descriptor)


def listed(pids: Sequence[int]) -> str:
    shown = ", ".join(str(pid) for pid in pids[:5])
    return f"process {shown}" if len(pids) == 1 else f"processes {shown}{'…' if len(pids) > 5 else ''}"


PLACEHOLDER = "evenkeel.placeholder"  # the cgroup of the placeholder process, below that of the scope

_SLEEP = "sleep infinity </dev/null >/dev/null 2>&1 & echo $!"
_children: set[int] = set()  # placeholders that are children of this process and were not reaped


def start_placeholder(path: str) -> int:
    """Starts a process that only sleeps, for the scope of the cgroup at `path`; returns its PID."""
    _reap_ended()
    try:
        done = subprocess.run(  # noqa: S603 the command is constant
            ["/bin/sh", "-c", _SLEEP],
            capture_output=True,
            check=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            text=True,
        )
        pid = int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CgroupError(
            f"cannot make cgroup {path}: a scope needs a process, and /bin/sh could not start sleep: {error}",
            path=path,
        ) from None
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        _children.add(pid)
    return pid


def replace_placeholder(driver: Driver, path: str, pid: int) -> None:
    """Lets a process take the place of the placeholder in the scope of the cgroup at `path`."""
    try:
        driver.add_process(path, pid)
    except CgroupError:  # the process has ended already
        with suppress(CgroupError):
            driver.remove(f"{path}/{PLACEHOLDER}")


def reap(killed: Iterable[int]) -> None:
    """Waits for the end of placeholders that were killed."""
    for pid in _children.intersection(killed):
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        _children.discard(pid)


def _reap_ended() -> None:
    """Reaps placeholders that systemd has killed, with scopes that were never used."""
    for pid in tuple(_children):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue  # it still runs
        _children.discard(pid)
