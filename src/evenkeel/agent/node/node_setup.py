"""Node setup: prepares the machine before the first pod. It checks the requirements, and changes the kernel settings
that the agent may change.

The journal keeps each changed setting with its original value. The agent restores it when it stops its pods and ends.
"""

import logging
import os
from collections.abc import Iterator

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.errors import EvenkeelError
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
        raise EvenkeelError(f"cannot put the kernel's settings back: {error.strerror}") from None
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
