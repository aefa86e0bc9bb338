"""A machine whose processor is emulated: QEMU with TCG, so that it works where no /dev/kvm is. What it has of the
host's directories is served by virtiofsd."""

import contextlib
import socket
import subprocess
from pathlib import Path
from typing import IO

from tests.machines.guest_process import Boot, Started, start
from tests.machines.packages import virtiofsd
from tests.machines.programs import programs

# A kernel that has failed ends at once, with its words on the console, and does not leave tests hanging. The last three
# are for guest/init.
KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet oops=panic panic=-1 reboot=triple "
    "mitigations=off nokaslr no_timer_check tsc=reliable random.trust_cpu=1 psi=1 "
    "disks=/dev/vd share=virtiofs output=/dev/vport*p1"
)


def boot(stack: contextlib.ExitStack, settings: Boot) -> Started:
    """Start QEMU and the servers of the directories; `stack` ends what is left of them."""
    messages = stack.enter_context((settings.directory / "messages").open("wb"))
    servers = [
        _serve(stack, settings.directory, share.name, share.path, share.mode, messages)
        for share in settings.shares
    ]
    machine = start(stack, _qemu(settings), messages, pass_fds=[settings.disk, settings.output])
    return Started(machine, servers)


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
    return start(stack, command, messages, pass_fds=[listening.fileno()])


def _arguments(settings: Boot) -> str:
    arguments = [KERNEL_ARGUMENTS]
    if settings.machine.kind != "v1":
        arguments.append("cgroup_no_v1=all")
    # The guest's counter is the host's. On a busy host the guest's kernel measures it wrongly now and then, and its
    # clock then runs at several times the speed.
    said = subprocess.run([programs() / "ticks"], check=True, capture_output=True, text=True).stdout
    if int(said):
        arguments.append(f"tsc_early_khz={int(said)}")
    return " ".join(arguments)


def _qemu(settings: Boot) -> list[str]:
    machine, directory = settings.machine, settings.directory
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-machine", "q35,memory-backend=memory", "-cpu", "Nehalem", "-smp", str(machine.cpus),
        "-accel", "tcg,thread=multi,tb-size=256",
        "-m", f"{machine.memory_mib}M",
        "-object", f"memory-backend-memfd,id=memory,size={machine.memory_mib}M,share=on",
        "-kernel", str(machine.image / "vmlinuz"), "-initrd", str(machine.initrd), "-append", _arguments(settings),
        "-serial", f"file:{directory / 'console'}",
        "-device", "virtio-rng-pci",
        "-device", "virtio-serial-pci",
        # A 'stdio' device whose input has ended blocks the guest: hand the pipe over as a file.
        "-chardev", f"file,id=output,path=/dev/fd/{settings.output}",
        "-device", "virtserialport,chardev=output",
        "-drive", f"file={machine.image / 'root.squashfs'},format=raw,if=none,id=root,readonly=on",
        "-device", "virtio-blk-pci,drive=root",
        "-drive", f"file=/dev/fd/{settings.disk},format=raw,if=none,id=scratch,cache=unsafe,discard=unmap",
        "-device", "virtio-blk-pci,drive=scratch",
    ]  # fmt: skip
    for tag in [share.name for share in settings.shares]:
        command += ["-chardev", f"socket,id={tag},path={directory / tag}.socket",
                    "-device", f"vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024"]  # fmt: skip
    return command
