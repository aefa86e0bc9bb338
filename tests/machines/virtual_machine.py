"""Boots a small virtual machine, runs one command in it, and ends it.

Its processor is emulated (`emulator`), or its kernel is a process of the host (`user_mode`). The guest has the root
image, a disk of its own for what it writes, and directories of the host: the project, read-only, under its own path
(but for src/, a copy of which is on that disk), and the directory of the job, through which the command goes in and its
exit status comes out.
"""

import contextlib
import os
import resource
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.machines import PROJECT, emulator, user_mode
from tests.machines.guest_process import Boot, Share, VirtualMachine

SCRATCH = "/scratch"
SCRATCH_BYTES = 4 << 30
END_SECONDS = 60.0  # after the last output: one that hangs is ended then


class Outcome(NamedTuple):
    """`status` is the command's exit status; None where the machine ended without one, and `failure` says why."""

    status: int | None
    boot_seconds: float
    job_seconds: float
    processor_seconds: float  # of the host's processors: what a guest costs, however busy the host is
    console: str
    failure: str = ""


class _MachineFailed(Exception):
    pass


def run(
    machine: VirtualMachine,
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    time_limit_seconds: float,
) -> Outcome:
    """Run `command` in `machine`, its output going to ours as it comes."""
    began, used_before_seconds = time.time(), _used_by_children_seconds()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenkeel-")))
        job = directory / "job"
        _write_job(job, machine, command, variables)
        failure = ""
        try:
            with contextlib.ExitStack() as started:
                _boot_and_wait(started, directory, machine, time.monotonic() + time_limit_seconds)
            if not (job / "status").exists():
                failure = "the machine ended before the command did"
        except _MachineFailed as reason:
            failure = str(reason)
        except TimeoutError:
            failure = f"the time limit of {time_limit_seconds:g} s is over; the machine was ended"
        ended = time.time()
        job_began = _written_at(job / "started") or ended
        return Outcome(
            status=None if failure else int((job / "status").read_text()),
            boot_seconds=job_began - began,
            job_seconds=(_written_at(job / "status") or ended) - job_began,
            processor_seconds=_used_by_children_seconds() - used_before_seconds,
            console=_console(directory, with_messages=bool(failure)),
            failure=failure,
        )


def _write_job(
    job: Path, machine: VirtualMachine, command: Sequence[str], variables: Mapping[str, str]
) -> None:
    job.mkdir()
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    entry = f"cd {shlex.quote(str(PROJECT))}\n{exports}exec {shlex.join(command)}\n"
    (job / "command").write_text(entry)
    (job / "init").write_text(machine.kind)
    (job / "project").write_text(str(PROJECT))


def _boot_and_wait(
    stack: contextlib.ExitStack, directory: Path, machine: VirtualMachine, deadline: float
) -> None:
    """Start everything, pass on the output until the machine ends; `stack` ends what is left, whatever happens."""
    shares = [Share("job", directory / "job", "rw"), Share("project", PROJECT, "ro")]
    disk = _make_disk(stack, directory)
    output, output_end = os.pipe()
    stack.callback(os.close, output)
    boot = user_mode.boot if machine.kind == user_mode.KIND else emulator.boot
    try:
        started = boot(stack, Boot(machine, directory, shares, disk, output_end))
    finally:
        os.close(output_end)

    with selectors.DefaultSelector() as events:
        events.register(output, selectors.EVENT_READ)
        for helper in started.helpers:
            descriptor = os.pidfd_open(helper.pid)
            stack.callback(os.close, descriptor)
            events.register(descriptor, selectors.EVENT_READ, helper)
        while True:
            ready = events.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if key.fd == output:
                    content = os.read(output, 1 << 16)
                    if not content:
                        _wait_for_end(started.machine, "the machine did not end with its output")
                        return
                    sys.stdout.buffer.write(content)
                    sys.stdout.buffer.flush()
                else:  # A server ends with its machine; one that ends alone would leave the guest waiting for ever.
                    events.unregister(key.fd)
                    _wait_for_end(started.machine, "a directory's server ended before the machine did")


def _wait_for_end(machine: subprocess.Popen[bytes], otherwise: str) -> None:
    try:
        status = machine.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        raise _MachineFailed(otherwise) from None
    if status:
        raise _MachineFailed(f"the machine ended with status {status}")


def _make_disk(stack: contextlib.ExitStack, directory: Path) -> int:
    """The guest's disk: a sparse file without a name, so that its space is free again however this ends."""
    file = stack.enter_context(tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 — the stack closes it
    file.truncate(SCRATCH_BYTES)
    disk = file.fileno()
    # The project's modules are on it as well: each agent reads hundreds, and a file of the host is dear to open.
    filled = directory / "disk"
    shutil.copytree(PROJECT / "src", filled / "src")
    # No journal: the disk does not outlive the machine.
    options = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-d", str(filled)]
    command = ["mkfs.ext4", *options, f"/dev/fd/{disk}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, pass_fds=[disk])
    return disk


def _used_by_children_seconds() -> float:
    """The processor time of child processes that have ended and were reaped."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _written_at(path: Path) -> float | None:
    return path.stat().st_mtime if path.exists() else None


def _console(directory: Path, *, with_messages: bool) -> str:
    """What the guest's kernel said, but for its last words; those of QEMU and the servers if they may matter."""
    files = ("console", "messages") if with_messages else ("console",)
    texts = [(directory / file).read_text(errors="replace") for file in files if (directory / file).exists()]
    lines = (line for text in texts for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if not line.endswith("sysrq: Resetting"))
