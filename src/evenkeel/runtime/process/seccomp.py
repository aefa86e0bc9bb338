"""The default seccomp filter of containers: the system calls that they may make.

It is an allowlist, as in other container runtimes (RuntimeDefault in Kubernetes). It has the calls that ordinary
programs need. It lacks the calls that make namespaces, mounts or keys, load code into the kernel, or inspect the
whole machine. libseccomp compiles it once for each supervisor. The result is in the kernel's own format, so a child
only has to install it.
"""

import ctypes
import errno
import os
import struct
from functools import cache
from typing import TYPE_CHECKING, Self

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.seccomp_ranges import shortened

if TYPE_CHECKING:  # the supervisor imports little
    from evenkeel.host.checks import Check

LIBRARY = "libseccomp.so.2"

# Calls that are allowed with any arguments, by topic. The list was made with the default profiles of Docker
# (moby/profiles) and containerd (contrib/seccomp) in view.
_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek _llseek sendfile sendfile64 splice tee
vmsplice copy_file_range readahead fadvise64 fadvise64_64 arm_fadvise64_64 sync_file_range sync_file_range2 fsync
fdatasync sync syncfs fallocate truncate truncate64 ftruncate ftruncate64 flock ioctl dup dup2 dup3 pipe
pipe2 close close_range

open openat openat2 creat access faccessat faccessat2 stat stat64 lstat lstat64 fstat fstat64 fstatat64 newfstatat
oldstat oldlstat oldfstat statx statfs statfs64 fstatfs fstatfs64 getdents getdents64 readdir getcwd chdir fchdir chroot
mkdir mkdirat rmdir rename renameat renameat2 link linkat symlink symlinkat unlink unlinkat readlink readlinkat mknod
mknodat chmod fchmod fchmodat fchmodat2 chown chown32 fchown fchown32 lchown lchown32 fchownat umask utime utimes
utimensat utimensat_time64 futimesat name_to_handle_at getxattr lgetxattr fgetxattr getxattrat setxattr lsetxattr
fsetxattr setxattrat listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat
inotify_init inotify_init1 inotify_add_watch inotify_rm_watch fanotify_mark statmount listmount
landlock_create_ruleset landlock_add_rule landlock_restrict_self

brk mmap mmap2 munmap mremap mprotect pkey_alloc pkey_free pkey_mprotect madvise process_madvise mincore msync mlock
mlock2 mlockall munlock munlockall membarrier memfd_create memfd_secret remap_file_pages map_shadow_stack mseal
cachestat process_mrelease set_mempolicy_home_node

fork vfork execve execveat exit exit_group wait4 waitpid waitid getpid getppid gettid getpgid getpgrp setpgid getsid
setsid kill tkill tgkill pidfd_open pidfd_send_signal pidfd_getfd ptrace process_vm_readv process_vm_writev kcmp prctl
arch_prctl modify_ldt set_thread_area get_thread_area set_tid_address set_robust_list get_robust_list futex
futex_time64 futex_waitv futex_wait futex_wake futex_requeue rseq restart_syscall seccomp uretprobe
rt_sigaction rt_sigprocmask rt_sigpending rt_sigqueueinfo rt_tgsigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
rt_sigtimedwait_time64 pause sigaction sigaltstack signal sigpending sigprocmask sigreturn sigsuspend signalfd signalfd4
sched_yield sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam sched_setparam
sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval
sched_rr_get_interval_time64 getpriority setpriority nice ioprio_get ioprio_set getcpu getrusage getrlimit ugetrlimit
setrlimit prlimit64 times

getuid getuid32 geteuid geteuid32 getgid getgid32 getegid getegid32 getgroups getgroups32 getresuid getresuid32
getresgid getresgid32 setuid setuid32 setgid setgid32 setreuid setreuid32 setregid setregid32 setresuid setresuid32
setresgid setresgid32 setfsuid setfsuid32 setfsgid setfsgid32 setgroups setgroups32 capget capset

time gettimeofday clock_gettime clock_gettime64 clock_getres clock_getres_time64 clock_nanosleep clock_nanosleep_time64
nanosleep adjtimex clock_adjtime clock_adjtime64 alarm getitimer setitimer timer_create timer_delete timer_getoverrun
timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64
timerfd_settime timerfd_settime64

select _newselect pselect6 pselect6_time64 poll ppoll ppoll_time64 epoll_create epoll_create1 epoll_ctl epoll_ctl_old
epoll_wait epoll_wait_old epoll_pwait epoll_pwait2 eventfd eventfd2 io_setup io_submit io_getevents io_pgetevents
io_pgetevents_time64 io_cancel io_destroy

socketpair bind listen accept accept4 connect getsockname getpeername getsockopt setsockopt shutdown send
sendto sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64
ipc shmget shmat shmctl shmdt semget semop semtimedop semtimedop_time64 semctl msgget msgsnd msgrcv msgctl mq_open
mq_unlink mq_timedsend mq_timedsend_time64 mq_timedreceive mq_timedreceive_time64 mq_notify mq_getsetattr

uname olduname oldolduname sysinfo getrandom arm_fadvise64_64 breakpoint cacheflush set_tls riscv_flush_icache
riscv_hwprobe sync_file_range2 swapcontext rtas switch_endian
"""

# Known calls that fail with EPERM, as programs expect. A call that is in neither list fails with ENOSYS: programs
# that try newer calls first then use older ones. `socketcall` has the arguments of 32-bit programs in memory, which a
# filter cannot read; for ten years the kernel has had a call for each of its uses.
_REFUSED = """
unshare setns mount umount umount2 pivot_root fsopen fsmount fsconfig fspick move_mount open_tree mount_setattr
open_by_handle_at fanotify_init lookup_dcookie quotactl quotactl_fd swapon swapoff acct vhangup ustat sysfs
keyctl add_key request_key bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register syslog
init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load kexec_file_load reboot
ioperm iopl vm86 vm86old uselib nfsservctl _sysctl
get_mempolicy set_mempolicy mbind migrate_pages move_pages
settimeofday stime clock_settime clock_settime64 sethostname setdomainname socketcall
"""

_NEW_NAMESPACES = 0x7E02_0000  # every CLONE_NEW… flag of clone(2)
_SINGLE_NAMESPACES = tuple(1 << bit for bit in range(32) if _NEW_NAMESPACES >> bit & 1)
_PERSONALITIES = (
    0x0,
    0x8,
    0x2_0000,
    0x2_0008,
    0xFFFF_FFFF,
)  # Linux, with and without 32-bit addresses; and the query for the present one

# Arguments that the kernel takes as 32 bits: a filter sees 64, and a program may put anything into the others. So only
# the lower half is compared. Each pair is a mask, and the value of the masked argument that is allowed.
_LOWER_HALF = 0xFFFF_FFFF
_AF_ALG, _AF_VSOCK = 38, 40  # AF_ALG: the kernel's own cipher code; AF_VSOCK: the host of a virtual machine
_SOCKETS = ((~0x1F, 0), (~0x3, 32), (~0x1, 36), (~0, 39), (~0, 41), (~0x1, 42), (~0x3, 44))
# A lease makes every process wait that opens the file, and it needs no right to write. A lease on a file of the host
# would block the host.
_SET_LEASE = 1024
_LEASE = syscalls.mask("lease")
_FILE_COMMANDS = ((~0x3F, 0), (~0, 1025), (~0x1, 1026), (~0x3, 1028), (~0x7, 1032))

# seccomp.h of libseccomp
ALLOW = 0x7FFF_0000
ERRNO = 0x0005_0000
_EQUAL, _MASKED_EQUAL = 4, 7
_ON_OTHER_ARCHITECTURES, _OPTIMIZE = 2, 8
_AS_A_TREE = 2
_OTHER_ARCHITECTURES = {"x86_64": ("x86",), "aarch64": ("arm",)}  # the same kernel runs their programs
_INSTRUCTION = struct.Struct("HBBI")


class NoFilter(EvenkeelError):
    """There is no libseccomp, or it could not compile the filter."""


class Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Filter(NamedTuple):
    """A program for the kernel's packet filter (BPF)."""

    instructions: bytes

    @property
    def length(self) -> int:
        return len(self.instructions) // _INSTRUCTION.size


NO_FILTER = Filter(b"")


def filter_problem() -> str:
    """Returns why there can be no filter here, in a sentence; empty if there can be one."""
    try:
        _library()
    except NoFilter as error:
        return str(error)
    return ""


class FilterBuilder:
    """A filter that libseccomp compiles. Raises NoFilter. The context manager frees its memory."""

    def __init__(self, default_action: int) -> None:
        self._library = _library()
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default_action)))
        if not self._context.value:
            raise NoFilter(f"{LIBRARY} cannot make a filter")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.seccomp_release(self._context)

    def set_attribute(self, which: int, value: int) -> None:
        done = self._library.seccomp_attr_set(self._context, ctypes.c_int(which), ctypes.c_uint32(value))
        _checked(done, "attribute")

    def add_architecture(self, name: str) -> None:
        number = self._library.seccomp_arch_resolve_name(name.encode())
        if not number:
            raise NoFilter(f"{LIBRARY} does not know the architecture {name}")
        if self._library.seccomp_arch_exist(self._context, ctypes.c_uint32(number)) != 0:
            _checked(self._library.seccomp_arch_add(self._context, ctypes.c_uint32(number)), name)

    def add(self, action: int, name: str, *comparisons: Comparison) -> None:
        """Adds a rule. A call that is newer than the library is left to the default action."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            return
        array = (Comparison * len(comparisons))(*comparisons)
        added = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), ctypes.c_int(number), ctypes.c_uint(len(array)), array
        )
        _checked(added, name)

    def compiled(self) -> Filter:
        exported = os.memfd_create("filter", os.MFD_CLOEXEC)
        try:
            _checked(self._library.seccomp_export_bpf(self._context, ctypes.c_int(exported)), "export")
            return Filter(os.pread(exported, os.fstat(exported).st_size, 0))
        finally:
            os.close(exported)


@cache
def default_filter(*, has_leases: bool = False) -> Filter:
    """Compiles the filter. `has_leases` is for a container with the capability LEASE. Raises NoFilter."""
    with FilterBuilder(ERRNO | errno.ENOSYS) as builder:
        builder.set_attribute(_ON_OTHER_ARCHITECTURES, ERRNO | errno.ENOSYS)
        builder.set_attribute(_OPTIMIZE, _AS_A_TREE)
        for name in _OTHER_ARCHITECTURES.get(os.uname().machine, ()):
            builder.add_architecture(name)
        for name in dict.fromkeys(_ALLOWED.split()):
            builder.add(ALLOW, name)
        for name in dict.fromkeys(_REFUSED.split()):
            builder.add(ERRNO | errno.EPERM, name)
        builder.add(ALLOW, "clone", Comparison(0, _MASKED_EQUAL, _NEW_NAMESPACES, 0))
        for flag in _SINGLE_NAMESPACES:
            builder.add(ERRNO | errno.EPERM, "clone", Comparison(0, _MASKED_EQUAL, flag, flag))
        # clone3 is not allowed: its flags are in memory, which a filter cannot read. Programs then use clone.
        for value in _PERSONALITIES:
            builder.add(ALLOW, "personality", Comparison(0, _EQUAL, value, 0))
        for mask, value in _SOCKETS:
            builder.add(ALLOW, "socket", Comparison(0, _MASKED_EQUAL, mask & _LOWER_HALF, value))
        for family in (_AF_ALG, _AF_VSOCK):
            builder.add(ERRNO | errno.EPERM, "socket", Comparison(0, _MASKED_EQUAL, _LOWER_HALF, family))
        for name in ("fcntl", "fcntl64"):
            if has_leases:
                builder.add(ALLOW, name)
                continue
            for mask, value in _FILE_COMMANDS:
                builder.add(ALLOW, name, Comparison(1, _MASKED_EQUAL, mask & _LOWER_HALF, value))
            builder.add(ERRNO | errno.EPERM, name, Comparison(1, _MASKED_EQUAL, _LOWER_HALF, _SET_LEASE))
        return Filter(shortened(builder.compiled().instructions))


class Filters:
    """The filters that a supervisor gives to containers. They are compiled before it has a child: a child that is
    inside a container's files would load the library from there."""

    def __init__(self) -> None:
        self._compiled: dict[bool, Filter | NoFilter] = {}

    def compile(self) -> None:
        for has_leases in (False, True):
            try:
                self._compiled[has_leases] = default_filter(has_leases=has_leases)
            except NoFilter as error:
                self._compiled[has_leases] = error

    def of(self, capabilities: int) -> Filter:
        """Returns the filter of a container with these capabilities. Raises NoFilter."""
        found = self._compiled[bool(capabilities & _LEASE)]
        if isinstance(found, NoFilter):
            raise found
        return found


def filter_check() -> "Check":
    """Checks for `evenkeel doctor` that the filter compiles, and that this kernel takes it. It forks a child for that,
    because a filter cannot be taken off again."""
    from evenkeel.host.checks import Check, State

    name = "seccomp filter"
    try:
        version = library_version()
        compiled = default_filter()
        problem = _kernel_problem(compiled)
    except NoFilter as error:
        return Check(
            name,
            State.BROKEN,
            error.message,
            "containers are refused: none runs without its filter",
            (),
            (error.hint or "upgrade libseccomp to 2.5 or newer",),
        )
    if problem:
        seen = f"libseccomp {version}, but the kernel does not take the filter: {problem}"
        mend = "a kernel with CONFIG_SECCOMP_FILTER"
        return Check(name, State.BROKEN, seen, "no container can be started", (), (mend,))
    return Check(
        name, State.OK, f"libseccomp {version}, {compiled.length} instructions, and the kernel takes them"
    )


def library_version() -> str:
    """Raises NoFilter."""
    library = _library()
    library.seccomp_version.restype = ctypes.POINTER(ctypes.c_uint * 3)
    return ".".join(map(str, library.seccomp_version().contents))


def _kernel_problem(compiled: Filter) -> str:
    """Returns why the kernel does not take the filter; empty if it does."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = syscalls.clone(0)
    if pid == 0:
        try:
            syscalls.set_no_new_privileges()
            syscalls.install_filter(compiled.instructions, compiled.length)
        except OSError as error:
            os.write(write, reason(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        problem = file.read()
    os.waitpid(pid, 0)
    return problem


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        raise NoFilter(
            f"containers need {LIBRARY}, which filters their system calls, and it is not installed",
            hint="install it: apt install libseccomp2, or dnf install libseccomp",
        ) from None


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise NoFilter(f"{LIBRARY} cannot compile the filter: {what}: {os.strerror(-result)}")
