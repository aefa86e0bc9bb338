"""Boots a small virtual machine, runs one command in it, and ends it.

QEMU emulates the processor (TCG), so that it works where no /dev/kvm is. The guest has the root image, a disk of
its own for what it writes, and two directories of the host, served by virtiofsd: the project, read-only, under
its own path (but for src/, a copy of which is on that disk), and the directory of the job, through which the command
goes in and its exit status comes out.
"""

import contextlib
import os
import resource
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tests.machines import PROJECT
from tests.machines.packages import virtiofsd
from tests.machines.programs import programs

SCRATCH = "/scratch"
SCRATCH_BYTES = 4 << 30
# A kernel that has failed ends at once, with its words on the console, and does not leave tests hanging.
KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet oops=panic panic=-1 reboot=triple "
    "mitigations=off nokaslr no_timer_check tsc=reliable random.trust_cpu=1 psi=1"
)


class VirtualMachine(NamedTuple):
    image: Path
    initrd: Path
    kind: str  # v1, v2, systemd
    memory_mib: int
    cpus: int


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
    """Start everything, pass on the output until QEMU ends; `stack` ends what is left, whatever happens."""
    messages = stack.enter_context((directory / "messages").open("wb"))
    shares = {"job": (directory / "job", "rw"), "project": (PROJECT, "ro")}
    servers = [_serve(stack, directory, tag, path, mode, messages) for tag, (path, mode) in shares.items()]
    disk = _make_disk(stack, directory)

    output, output_end = os.pipe()
    stack.callback(os.close, output)
    # A 'stdio' device whose input has ended blocks the guest: hand the pipe over as a file.
    command = _qemu(machine, directory, list(shares), f"/dev/fd/{disk}", f"/dev/fd/{output_end}")
    try:
        qemu = _start(stack, command, messages, pass_fds=[disk, output_end])
    finally:
        os.close(output_end)

    with selectors.DefaultSelector() as events:
        events.register(output, selectors.EVENT_READ)
        for server in servers:
            descriptor = os.pidfd_open(server.pid)
            stack.callback(os.close, descriptor)
            events.register(descriptor, selectors.EVENT_READ, server)
        while True:
            ready = events.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if key.fd == output:
                    content = os.read(output, 1 << 16)
                    if not content:
                        _wait_for_end(qemu)
                        return
                    sys.stdout.buffer.write(content)
                    sys.stdout.buffer.flush()
                else:  # A server ends with QEMU; one that ends alone would leave the guest waiting for ever.
                    events.unregister(key.fd)
                    _wait_for_end(qemu)


def _wait_for_end(qemu: subprocess.Popen[bytes]) -> None:
    try:
        status = qemu.wait(timeout=5)
    except subprocess.TimeoutExpired:
        raise _MachineFailed("a directory's server ended before the machine did") from None
    if status:
        raise _MachineFailed(f"QEMU ended with status {status}")


def _serve(
    stack: contextlib.ExitStack, directory: Path, tag: str, path: Path, mode: str, messages: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Serve `path` on a socket, from a mount namespace that ends with the server.

    Read-only is a matter of the mount: the server has no such option. The bind is not recursive, so that nothing
    mounted below comes along.
    """
    mounted = directory / f"{tag}-mounted"
    mounted.mkdir()
    listening = stack.enter_context(socket.socket(socket.AF_UNIX))
    listening.bind(str(directory / f"{tag}.socket"))
    listening.listen(1)
    cache = "always" if mode == "ro" else "auto"
    options = f"source={mounted},sandbox=chroot,cache={cache}"
    script = 'mount --bind -o "$1" "$2" "$3" && shift 3 && exec "$@"'
    command = ["unshare", "--mount", "--", "sh", "-c", script, "sh", mode, str(path), str(mounted),
               str(virtiofsd()), "-f", "--rlimit-nofile=0", f"--fd={listening.fileno()}", "-o", options]  # fmt: skip
    return _start(stack, command, messages, pass_fds=[listening.fileno()])


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


def _arguments(machine: VirtualMachine) -> str:
    arguments = [KERNEL_ARGUMENTS]
    if machine.kind != "v1":
        arguments.append("cgroup_no_v1=all")
    # The guest's counter is the host's. On a busy host the guest's kernel measures it wrongly now and then, and its
    # clock then runs at several times the speed.
    said = subprocess.run([programs() / "ticks"], check=True, capture_output=True, text=True).stdout
    if int(said):
        arguments.append(f"tsc_early_khz={int(said)}")
    return " ".join(arguments)


def _qemu(
    machine: VirtualMachine, directory: Path, shares: Sequence[str], disk: str, output: str
) -> list[str]:
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-machine", "q35,memory-backend=memory", "-cpu", "Nehalem", "-smp", str(machine.cpus),
        "-accel", "tcg,thread=multi,tb-size=256",
        "-m", f"{machine.memory_mib}M",
        "-object", f"memory-backend-memfd,id=memory,size={machine.memory_mib}M,share=on",
        "-kernel", str(machine.image / "vmlinuz"), "-initrd", str(machine.initrd), "-append", _arguments(machine),
        "-serial", f"file:{directory / 'console'}",
        "-device", "virtio-rng-pci",
        "-device", "virtio-serial-pci",
        "-chardev", f"file,id=output,path={output}",
        "-device", "virtserialport,chardev=output",
        "-drive", f"file={machine.image / 'root.squashfs'},format=raw,if=none,id=root,readonly=on",
        "-device", "virtio-blk-pci,drive=root",
        "-drive", f"file={disk},format=raw,if=none,id=scratch,cache=unsafe,discard=unmap",
        "-device", "virtio-blk-pci,drive=scratch",
    ]  # fmt: skip
    for tag in shares:
        command += ["-chardev", f"socket,id={tag},path={directory / tag}.socket",
                    "-device", f"vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024"]  # fmt: skip
    return command


def _start(
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


def _used_by_children_seconds() -> float:
    """Of the processors, by those that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _written_at(path: Path) -> float | None:
    return path.stat().st_mtime if path.exists() else None


def _console(directory: Path, *, with_messages: bool) -> str:
    """What the guest's kernel said, but for its last words; QEMU's and the servers' messages if they may matter."""
    files = ("console", "messages") if with_messages else ("console",)
    texts = [(directory / file).read_text(errors="replace") for file in files if (directory / file).exists()]
    lines = (line for text in texts for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if not line.endswith("sysrq: Resetting"))
