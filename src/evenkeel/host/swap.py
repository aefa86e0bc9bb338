"""Swap: memory guarantees assume there is none (A18)."""

import re
from typing import NamedTuple

from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.policy.words import bytes_text

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
    """Those in use; a kernel without swap has none."""
    try:
        return parse_swaps(read_text(f"{proc}/swaps"))
    except EvenkeelError:
        return ()


def swap_mend(devices: tuple[SwapDevice, ...]) -> str:
    """The command that ends it for now, and what brings it back at the next start."""
    if any("/zram" in device.path for device in devices):
        return "swapoff -a, and remove zram-generator or its configuration"
    return "swapoff -a, and take its lines out of /etc/fstab"


def check_swap(devices: tuple[SwapDevice, ...], *, fail_swap_on: bool) -> None:
    """Raises where the agent must not start (A18)."""
    if devices and fail_swap_on:
        listed = ", ".join(device.text for device in devices)
        raise EvenkeelError(
            f"swap is on: {listed}. A pod whose memory is swapped out does not have what it requested",
            hint=f"run {swap_mend(devices)}; or allow it with --fail-swap-on=false",
        )
