"""The processes that are a guest: what they are started with, and that they do not outlive us."""

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple


class VirtualMachine(NamedTuple):
    image: Path
    initrd: Path
    kind: str  # v1, v2, systemd, user-mode
    memory_mib: int
    cpus: int


class Share(NamedTuple):
    """A directory of the host that the guest finds under `name`, as tests/machines/guest/init mounts it."""

    name: str
    path: Path
    mode: str  # rw, ro


class Boot(NamedTuple):
    """`directory` is for what the machine needs while it runs, and its console; `disk` and `output` are descriptors."""

    machine: VirtualMachine
    directory: Path
    shares: Sequence[Share]
    disk: int
    output: int


class Started(NamedTuple):
    """`helpers` end with the machine; if one ends alone, the machine has failed."""

    machine: subprocess.Popen[bytes]
    helpers: Sequence[subprocess.Popen[bytes]] = ()


def start(
    stack: contextlib.ExitStack, command: Sequence[str], messages: IO[bytes], *, pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this one: killed at the end of `stack`, or by the kernel if we die."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *command],
        stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, pass_fds=pass_fds,
        start_new_session=True,  # ^C is for us
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process
