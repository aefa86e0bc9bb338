"""Node setup, before the first pod is started. It takes its state directory, checks the machine, and changes the kernel
settings that it may change.

The state directory belongs to one user, and a lock ensures that only one agent at a time uses it. The journal keeps
each changed kernel setting with its original value. The agent restores it when it stops its pods and ends.
"""

import fcntl
import logging
import os
from collections.abc import Iterator

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.checks import State
from evenkeel.host.doctor import diagnose
from evenkeel.host.kernel_settings import (
    Difference,
    KernelSetting,
    apply_kernel_settings,
    kernel_settings,
    restore_kernel_settings,
)
from evenkeel.host.machine import inspect_machine
from evenkeel.host.oom_scores import protect_daemons
from evenkeel.journal.store import Journal

log = logging.getLogger(__name__)

_SETTINGS = "kernelSettings"


def prepare_node(config: KubeletConfiguration, state_directory: str, journal: Journal) -> Iterator[str]:
    """Prepares the node. Yields a sentence for each problem that does not prevent the agent's start. Raises
    EvenkeelError with all problems that prevent it (A13, A18, C5, E7)."""
    machine = inspect_machine(config, state_directory)
    diagnosis = diagnose(machine, config)
    diagnosis.or_raise()
    if machine.root_refusal:
        raise EvenkeelError(
            f"the cgroup {config.cgroup_root} for pods cannot be made: {machine.root_refusal}",
            hint="run as root; or, on cgroup v2, get a cgroup of your own with `systemd-run --user --scope -p"
            " Delegate=yes bash`, and in it name one below what /proc/self/cgroup shows with --cgroup-root",
        )
    for check in diagnosis.checks:
        if check.state == State.BROKEN:
            yield f"{check.name}: {check.seen} (evenkeel doctor says what that breaks, and the mend)"
    if os.geteuid() == 0:
        changed = apply_kernel_settings(
            kernel_settings(config.rulebook), protect=config.protect_kernel_defaults
        )
        _keep(journal, changed)
        for setting, seen in changed:
            log.info("%s was %s and is now %s, so that %s", setting.name, seen, setting.value, setting.why)


def protect_daemons_of(config: KubeletConfiguration, driver: Driver) -> Iterator[str]:
    """Sets the OOM score of the agent, and of all processes in the cgroups reserved for daemons (A12)."""
    reserved = [path for path in (config.kube_reserved_cgroup, config.system_reserved_cgroup) if path]

    def daemons() -> list[int]:
        return [pid for path in reserved for pid in driver.processes(path)]

    try:
        scored = protect_daemons([os.getpid()], daemons, config.oom_score_adj)
    except CgroupError as error:
        yield str(error)
    else:
        if scored.message:
            yield scored.message


def restore_node(journal: Journal) -> None:
    """Restores the kernel settings to their values before the agent's first start."""
    kept = journal.value(_SETTINGS)
    if not isinstance(kept, dict):
        return
    before = [
        Difference(KernelSetting(name, value, ""), seen)
        for name, (value, seen) in kept.items()
        if isinstance(value, int)
    ]
    try:
        restore_kernel_settings(before)
    except OSError as error:
        raise EvenkeelError(f"cannot put the kernel's settings back: {reason(error)}") from None
    journal.set_value(_SETTINGS, None)


def _keep(journal: Journal, changed: tuple[Difference, ...]) -> None:
    """Keeps the changed settings in the journal. The first value that was found is the one to restore: later values do
    not replace it."""
    before = journal.value(_SETTINGS)
    kept = {setting.name: [setting.value, seen] for setting, seen in changed}
    if isinstance(before, dict):
        kept = {**kept, **before}
    if kept and kept != before:
        journal.set_value(_SETTINGS, kept)


LOCK = "lock"


class StateLock:
    def __init__(self, descriptor: int) -> None:
        """Use `acquire`."""
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, directory: str) -> "StateLock":
        """Locks `directory`/lock. Raises EvenkeelError if another agent holds the lock, and names its pid."""
        path = os.path.join(directory, LOCK)
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise EvenkeelError(
                    f"cannot lock the state directory {directory}: {reason(error)}",
                    hint="give one that is yours with --state-dir",
                ) from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still_there(path, descriptor):
                    _sign(descriptor)
                    return cls(descriptor)
            except BlockingIOError:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise EvenkeelError(
                    f"another agent{holder} runs with the state directory {directory}",
                    hint="stop it first, or give another --state-dir",
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise EvenkeelError(
                    f"cannot lock {path}: {reason(error)}",
                    hint="give a state directory on a local file system with --state-dir",
                ) from None
            os.close(descriptor)  # the file was removed in the meantime: lock the new one

    def release(self) -> None:
        """Releases the lock. The file stays: it may already be the lock of another agent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _is_still_there(path: str, descriptor: int) -> bool:
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _sign(descriptor: int) -> None:
    """Writes the holder's pid to the lock file, for the error message of another agent. The lock holds even if a full
    disk prevents this."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass


def _holder(descriptor: int) -> str:
    try:
        text = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return f" (pid {text})" if text.isdigit() else ""


def made_state_directory(directory: str) -> str:
    """Makes the state directory, with access for its owner only. A user that can write here decides what runs as
    root."""
    path = os.path.abspath(directory)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        seen = os.stat(path)
        if seen.st_uid != os.geteuid():
            raise EvenkeelError(
                f"--state-dir {path} belongs to user {seen.st_uid}, and the agent runs as user {os.geteuid()}",
                hint=f"chown {os.geteuid()} {path}, or name another directory",
            )
        if seen.st_mode & 0o077:
            os.chmod(path, 0o700)
    except OSError as error:
        raise EvenkeelError(f"--state-dir {path} cannot be made: {reason(error)}") from None
    return path
