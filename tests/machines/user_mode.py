"""A machine whose kernel is a process of the host: Debian's User-mode Linux, a real kernel with cgroup v2.

It computes at the host's own speed, where an emulated one is ten to twenty times slower; a system call, and a page
that is touched for the first time, cost more. It has one processor, and neither PSI nor cpusets nor huge pages.

The processes of the guest are processes of the host, which the kernel's process traces: it runs each system call of
theirs. If it died they would go on by themselves, as root. So all of them are in a PID namespace that ends with it, and
see nothing but what the guest is to have: files that are read-only but for the job's, no network, no capability.
"""

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.machines import Unavailable
from tests.machines.cache import CACHE, made_once
from tests.machines.guest_process import Boot, Started, start
from tests.machines.packages import unpacked
from tests.machines.programs import COMPILER

KIND = "user-mode"
PACKAGE = "user-mode-linux"
MODULES = ("squashfs", "overlay")  # to begin with; the others are a shared directory
# The C library calls what is here in place of its own ptrace.
WHOLE_REGISTERS = Path(__file__).with_name("whole_registers.c")
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
PTRACE_NEEDS_A_CAPABILITY = 2
# The last three are for guest/init.
KERNEL_ARGUMENTS = (
    "con=null", "con0=null,fd:1", "quiet", "oops=panic", "panic=-1", "cgroup_no_v1=all",
    "disks=/dev/ubd", "share=hostfs", "output=/dev/ttyS0",
)  # fmt: skip
# A root of its own in memory: the host's /usr and what is named, as NAME PATH MODE each, up to `--`.
ENCLOSED = r"""
set -e
new=$1; shift
mount -t tmpfs -o mode=755 tmpfs "$new"
mkdir "$new/proc" "$new/dev" "$new/dev/shm" "$new/tmp" "$new/usr"
mount --bind -o ro /usr "$new/usr"
for link in bin lib lib64 sbin; do ln -s "usr/$link" "$new/$link"; done
mount -t proc -o ro proc "$new/proc"
mount -t tmpfs -o mode=1777 tmpfs "$new/dev/shm"
ln -s /proc/self/fd "$new/dev/fd"
touch "$new/dev/null"; mount --bind /dev/null "$new/dev/null"
while [ "$1" != -- ]; do
    if [ -d "$2" ]; then mkdir -p "$new/$1"; else touch "$new/$1"; fi
    mount --bind -o "$3" "$2" "$new/$1"
    shift 3
done
shift
unset TMPDIR TMP TEMP  # a directory of the host, where the kernel would look for its memory
# Not executed: a kernel that has failed sends itself a signal that the first process of a namespace would not get.
chroot "$new" setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@" || exit $?
exit 0
"""


def require_user_mode() -> None:
    """Raise `Unavailable` where there is no such kernel, or it may not trace the processes of its guest."""
    kernel_modules()
    if PTRACE_SCOPE.exists() and int(PTRACE_SCOPE.read_text()) >= PTRACE_NEEDS_A_CAPABILITY:
        raise Unavailable(f"{PTRACE_SCOPE} keeps processes from tracing their children: 0 or 1 would do")


def kernel_modules() -> Path:
    """The modules of the only kernel in the package."""
    (modules,) = (unpacked(PACKAGE) / "usr" / "lib" / "uml" / "modules").iterdir()
    return modules


def whole_registers() -> Path:
    """The library for processors with more registers than this kernel knows."""
    command = [*COMPILER, "-shared", "-fPIC"]

    def compile_it(target: Path) -> None:
        subprocess.run([*command, "-o", str(target / "library.so"), str(WHOLE_REGISTERS)], check=True)

    return made_once("whole-registers", [*command, WHOLE_REGISTERS.read_bytes()], compile_it) / "library.so"


@contextlib.contextmanager
def one_processor(processors: Sequence[int], *, cache: Path = CACHE) -> Iterator[list[str]]:
    """The command that binds its arguments to a processor that no other such machine is bound to; none, if there is
    none. The kernel's process and those that it traces take turns: between processors that costs half as much again."""
    cache.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        for number in processors:
            lock = held.enter_context((cache / f"processor-{number}.lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield ["taskset", "--cpu-list", str(number)]
            return
        yield []


def boot(stack: contextlib.ExitStack, settings: Boot) -> Started:
    directory, machine = settings.directory, settings.machine
    root = directory / "root"
    root.mkdir()
    files = [
        ("linux", unpacked(PACKAGE) / "usr" / "bin" / "linux.uml", "ro"),
        ("whole_registers.so", whole_registers(), "ro"),
        ("initrd", machine.initrd, "ro"),
        ("image", machine.image / "root.squashfs", "ro"),
        ("share/modules", kernel_modules(), "ro"),
        *((f"share/{share.name}", share.path, share.mode) for share in settings.shares),
    ]
    named = [str(word) for file in files for word in file]
    kernel = [
        "env", "LD_PRELOAD=/whole_registers.so", "/linux",
        f"mem={machine.memory_mib}M", "initrd=/initrd", "ubd0rc=/image", f"ubd1c=/dev/fd/{settings.disk}",
        "hostfs=/share", f"ssl0=null,fd:{settings.output}", "uml_dir=/tmp/", *KERNEL_ARGUMENTS,
    ]  # fmt: skip
    bound = stack.enter_context(one_processor(sorted(os.sched_getaffinity(0))))
    enclosed = [*bound, "unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child=KILL", "--",
                "sh", "-c", ENCLOSED, "sh", str(root), *named, "--"]  # fmt: skip
    console = stack.enter_context((directory / "console").open("wb"))
    return Started(start(stack, [*enclosed, *kernel], console, pass_fds=[settings.disk, settings.output]))
