"""Kernel settings that the agent needs: set at start-up, or an error with the command where it may not set them (A13).

And swap, which the agent does not change: the devices in use, and the command that turns them off (A18).
"""

import os
import re
from collections.abc import Iterable

from evenkeel.api.config import Profile
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import bytes_text


class KernelSetting(NamedTuple):
    name: str
    value: int
    why: str

    def path(self, proc: str = "/proc") -> str:
        return f"{proc}/sys/{self.name.replace('.', '/')}"


class Difference(NamedTuple):
    """A setting with another value than wanted; `seen` is None if the kernel does not have it or does not show it."""

    setting: KernelSetting
    seen: int | None


_MEMORY = (
    KernelSetting(
        "vm.overcommit_memory",
        1,
        "memory pressure ends in a kill of the right process, not in a failed malloc of the wrong one",
    ),
    KernelSetting("vm.panic_on_oom", 0, "an OOM kills a process and does not stop the machine"),
)
_KUBELETS = (
    KernelSetting("kernel.panic", 10, "a machine that panicked starts again after 10 s"),
    KernelSetting("kernel.panic_on_oops", 1, "a kernel that has lost its way stops"),
    KernelSetting("kernel.keys.root_maxkeys", 1_000_000, "root's containers do not run out of keys"),
    KernelSetting(
        "kernel.keys.root_maxbytes", 25_000_000, "root's containers do not run out of room for keys"
    ),
)


def kernel_settings(profile: Profile) -> tuple[KernelSetting, ...]:
    """The settings that must hold while pods run: those of memory, and in the profile of kubelet some more."""
    return _MEMORY if profile == Profile.DOCUMENTS else (*_MEMORY, *_KUBELETS)


def differences(settings: Iterable[KernelSetting], proc: str = "/proc") -> tuple[Difference, ...]:
    found = (Difference(setting, _read(setting, proc)) for setting in settings)
    return tuple(difference for difference in found if difference.seen != difference.setting.value)


def mend(wrong: Iterable[Difference]) -> str:
    """The command that sets them."""
    return "sysctl -w " + " ".join(f"{one.setting.name}={one.setting.value}" for one in wrong)


def apply_kernel_settings(
    settings: Iterable[KernelSetting], *, protect: bool, proc: str = "/proc"
) -> tuple[Difference, ...]:
    """Sets them, and returns what was different before. With `protect` (protectKernelDefaults) nothing is changed and a
    difference is an error. A setting that the kernel does not let us change is an error too."""
    wrong = differences(settings, proc)
    if wrong and protect:
        raise EvenkeelError(
            f"{_listed(wrong)}, and --protect-kernel-defaults forbids changing that",
            hint=f"run {mend(wrong)}, or leave out --protect-kernel-defaults",
        )
    refused = []
    for difference in wrong:
        try:
            _write(difference.setting, proc)
        except OSError as error:
            refused.append((difference, reason(error)))
    if refused:
        raise EvenkeelError(
            f"{_listed(one for one, _ in refused)}, and the kernel does not let us change that: {refused[0][1]}",
            hint=f"run {mend(one for one, _ in refused)} as root",
        )
    return wrong


def restore_kernel_settings(before: Iterable[Difference], proc: str = "/proc") -> None:
    """Restores what `apply_kernel_settings` changed. A setting that others have changed since is left as it is."""
    for setting, seen in before:
        if seen is not None and _read(setting, proc) == setting.value:
            _write(setting._replace(value=seen), proc)


def _listed(wrong: Iterable[Difference]) -> str:
    return ", ".join(
        f"{setting.name} is {'not there' if seen is None else seen} and must be {setting.value}, so that {setting.why}"
        for setting, seen in wrong
    )


def _read(setting: KernelSetting, proc: str) -> int | None:
    try:
        return int(read_text(setting.path(proc)))
    except (EvenkeelError, ValueError):
        return None


def _write(setting: KernelSetting, proc: str) -> None:
    descriptor = os.open(setting.path(proc), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{setting.value}\n".encode())
    finally:
        os.close(descriptor)


_ESCAPE = re.compile(r"\\([0-7]{3})")


class SwapDevice(NamedTuple):
    path: str
    kind: str  # partition or file
    size_bytes: int
    used_bytes: int

    @property
    def text(self) -> str:
        return f"{self.path} ({bytes_text(self.size_bytes)}, {bytes_text(self.used_bytes)} used)"


def parse_swaps(text: str) -> tuple[SwapDevice, ...]:
    """/proc/swaps: a heading, then a line for each device in use."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 4 and words[-2].isdecimal() and words[-3].isdecimal():
            path = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), words[0])
            found.append(SwapDevice(path, words[1], int(words[-3]) * 1024, int(words[-2]) * 1024))
    return tuple(found)


def swap_devices(proc: str = "/proc") -> tuple[SwapDevice, ...]:
    """The devices in use; none on a kernel without swap."""
    try:
        return parse_swaps(read_text(f"{proc}/swaps"))
    except EvenkeelError:
        return ()


def swap_mend(devices: tuple[SwapDevice, ...]) -> str:
    """The command that turns swap off, and the place that would turn it on again at the next boot."""
    if any("/zram" in device.path for device in devices):
        return "swapoff -a, and remove zram-generator or its configuration"
    return "swapoff -a, and take its lines out of /etc/fstab"
