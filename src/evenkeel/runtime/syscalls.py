"""System calls that the standard library does not have, in one thin typed module.

Every function raises OSError with the kernel's errno and, if there is one, the path. The functions are used between
fork and exec too, so this module imports little more than ctypes and os.
"""

import ctypes
import errno
import os
import signal

# clone(2), unshare(2), setns(2)
CLONE_PARENT = 0x0000_8000
_CLONE_PARENT_SETTID = 0x0010_0000
CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
_CLONE_CLEAR_SIGHAND = 0x1_0000_0000
_CLONE_INTO_CGROUP = 0x2_0000_0000

# mount(2)
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOSYMFOLLOW = 0x100
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_UNBINDABLE = 0x2_0000
MS_PRIVATE = 0x4_0000
MS_SLAVE = 0x8_0000
MS_SHARED = 0x10_0000
MS_RELATIME = 0x20_0000
MS_STRICTATIME = 0x100_0000

# umount2(2)
MNT_FORCE = 0x1
MNT_DETACH = 0x2
UMOUNT_NOFOLLOW = 0x8

# mount_setattr(2), open_tree(2), move_mount(2)
AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40

# openat2(2)
RESOLVE_NO_XDEV = 0x1
RESOLVE_NO_MAGICLINKS = 0x2
RESOLVE_NO_SYMLINKS = 0x4
RESOLVE_BENEATH = 0x8
RESOLVE_IN_ROOT = 0x10

# close_range(2)
CLOSE_RANGE_CLOEXEC = 0x4

# capabilities(7), by number
_CAPABILITY_NAMES = """
chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin
sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore
"""
CAPABILITIES = {name: number for number, name in enumerate(_CAPABILITY_NAMES.split())}
# Docker's default set, without the right to make device files (mknod) and to listen to the host's network (net_raw).
DEFAULT_CAPABILITIES = frozenset(
    ("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "net_bind_service", "setfcap", "setgid",
     "setpcap", "setuid", "sys_chroot")
)  # fmt: skip
# The capabilities that a manifest may have. Others would reach the host: its network, clock, devices, files or
# processes.
GRANTABLE_CAPABILITIES = DEFAULT_CAPABILITIES | {"ipc_lock", "lease", "net_raw", "wake_alarm"}

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4  # without it, older kernels would slow the whole program down
_CAPABILITY_VERSION_3 = 0x2008_0522

# From 424 on, a call has the same number on every architecture. clone is older.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_CLONE3 = 435
_SYS_CLOSE_RANGE = 436
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442
_SYS_RT_SIGACTION = {"x86_64": 13, "aarch64": 134, "riscv64": 134, "ppc64le": 173, "armv7l": 174, "i686": 174}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277, "riscv64": 277, "ppc64le": 358, "armv7l": 383, "i686": 354}
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "armv7l": 311, "i686": 288}
_SYS_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120, "armv7l": 120, "i686": 120}

# PyDLL: the interpreter keeps its lock during a call. A fork would see only a copy of the lock.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Looked up once, here. Otherwise each child would look them up again.
for _name in (
    "capget",
    "capset",
    "mount",
    "pivot_root",
    "prctl",
    "sethostname",
    "setns",
    "syscall",
    "unshare",
):
    getattr(_libc, _name)
_libc.prctl.argtypes = (ctypes.c_int, *(4 * [ctypes.c_ulong]))
# For calls that may take the kernel a while: other threads run meanwhile.
_patient_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)))


def setns(descriptor: int, kinds: int) -> None:
    """Enters the namespace behind a descriptor of /proc/PID/ns/…, or the namespaces of the given kinds of a pidfd."""
    _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kinds)))


def clone(flags: int, number_at: int = 0) -> int:
    """Forks into new namespaces. Returns 0 in the child.

    It is only for a process with one thread, and the child must exec soon: Python's own fork hooks are not run. The
    kernel writes the child's number (4 bytes) to the address `number_at` before the child runs. Raises OSError with
    ENOSYS on an architecture whose call number is not known here.
    """
    number = _number_of(_SYS_CLONE)
    if number_at:
        flags |= _CLONE_PARENT_SETTID
    arguments = map(ctypes.c_ulong, (flags | signal.SIGCHLD, 0, number_at, 0, 0))
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def clone_clean(flags: int = 0, cgroup: int = -1) -> int:
    """Forks as `clone` does. In the child, no signal has a handler; ignored signals stay ignored. Linux 5.5.

    With `cgroup`, a descriptor of the directory of a cgroup (v2), the child is in this cgroup from the beginning.
    Linux 5.7.
    """
    flags |= _CLONE_CLEAR_SIGHAND | (_CLONE_INTO_CGROUP if cgroup >= 0 else 0)
    # The fields at 0: descriptors and addresses for numbers, a stack, thread-local storage, a chosen number.
    arguments = (ctypes.c_uint64 * 11)(flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, max(cgroup, 0))
    size = ctypes.c_size_t(ctypes.sizeof(arguments))
    return _checked(_libc.syscall(ctypes.c_long(_SYS_CLONE3), arguments, size))


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    made = _libc.mount(
        _path(source), os.fsencode(target), _path(kind), ctypes.c_ulong(flags), os.fsencode(data) or None
    )
    _checked(made, target)


def umount(target: str, flags: int = 0) -> None:
    _checked(_patient_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), target)


def pivot_root(new_root: str, put_old: str) -> None:
    _checked(_libc.pivot_root(os.fsencode(new_root), os.fsencode(put_old)), new_root)


def mount_setattr(
    path: str,
    *,
    add: int = 0,
    clear: int = 0,
    propagation: int = 0,
    flags: int = AT_RECURSIVE,
    dir_fd: int = AT_FDCWD,
) -> None:
    """Sets MOUNT_ATTR_… of a mount and (AT_RECURSIVE) of all mounts below it. Linux 5.12; before, ENOSYS."""
    attributes = (ctypes.c_uint64 * 4)(add, clear, propagation, 0)
    _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(dir_fd),
            os.fsencode(path),
            ctypes.c_uint(flags),
            attributes,
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        ),
        path,
    )


def open_tree(path: str, flags: int = OPEN_TREE_CLONE, dir_fd: int = AT_FDCWD) -> int:
    """Opens a mount, or with OPEN_TREE_CLONE a copy that is not attached yet (`move_mount`). Linux 5.2."""
    return _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_OPEN_TREE),
            ctypes.c_int(dir_fd),
            os.fsencode(path),
            ctypes.c_uint(flags | OPEN_TREE_CLOEXEC),
        ),
        path,
    )


def move_mount(from_fd: int, to_fd: int, to_path: str = "") -> None:
    """Attaches a mount of `open_tree` at the descriptor `to_fd`, or at `to_path` relative to it. Linux 5.2."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if to_path else MOVE_MOUNT_T_EMPTY_PATH)
    moved = _libc.syscall(
        ctypes.c_long(_SYS_MOVE_MOUNT),
        ctypes.c_int(from_fd),
        b"",
        ctypes.c_int(to_fd),
        os.fsencode(to_path),
        ctypes.c_uint(flags),
    )
    _checked(moved, to_path)


def open_within(directory: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """openat2: opens `path` from `directory`, with bounds (RESOLVE_…) on symlinks and mounts. Linux 5.6.

    The call fails with EAGAIN if a path changes meanwhile. The caller then tries again.
    """
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode, resolve)
    return _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(directory),
            os.fsencode(path),
            how,
            ctypes.c_size_t(ctypes.sizeof(how)),
        ),
        path,
    )


def set_hostname(name: str) -> None:
    encoded = os.fsencode(name)
    _checked(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))))


def set_child_subreaper() -> None:
    """Makes this process the parent of all descendants whose own parents have ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends. The program that it executes may undo that."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_no_new_privileges() -> None:
    """No program that is executed from now on gains privileges: set-user-ID bits have no effect."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(*, is_dumpable: bool) -> None:
    """Sets, until the next exec, whether processes without CAP_SYS_PTRACE may inspect this one.

    That means ptrace, and in /proc its memory, descriptors, directories and program.
    """
    _prctl(_PR_SET_DUMPABLE, int(is_dumpable))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_filter(instructions: bytes, count: int) -> None:
    """Installs a filter: this process and its descendants may make only the system calls that it allows.

    Needs `set_no_new_privileges`, or CAP_SYS_ADMIN. Raises OSError with ENOSYS on an architecture not known here.
    """
    program = _FilterProgram(count, instructions)
    _checked(
        _libc.syscall(
            ctypes.c_long(_number_of(_SYS_SECCOMP)),
            ctypes.c_uint(_SECCOMP_SET_MODE_FILTER),
            ctypes.c_uint(_SECCOMP_FILTER_FLAG_SPEC_ALLOW),
            ctypes.byref(program),
        )
    )


def join_new_session_keyring() -> None:
    """Gives this process a new, empty session keyring. It can no longer use the keys of its old session.

    It has no effect on a kernel without keys.
    """
    try:
        number = _number_of(_SYS_KEYCTL)
        arguments = (ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), None)
        _checked(_libc.syscall(*arguments))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise


def drop_bounding_capabilities(dropped: int) -> None:
    """Programs that are executed from now on never have a capability of the mask `dropped`, not even as root."""
    for capability in range(64):
        if dropped >> capability & 1 and not _drop_from_bounding_set(capability):
            return


def limit_capabilities(kept: int) -> None:
    """Drops all capabilities of this process outside the mask `kept`. None are inherited."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low words, then high words
    _checked(_libc.capget(header, sets))
    for half in (0, 1):
        for which in (0, 1):
            sets[3 * half + which] &= kept >> 32 * half & 0xFFFF_FFFF
        sets[3 * half + 2] = 0
    _checked(_libc.capset(header, sets))
    try:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 4.3 has no ambient set
            raise


def stop_ignoring(number: int) -> None:
    """Resets an ignored signal to its default, also the two that the C library reserves (32 and 33).

    The C library does not let a program set these two, and a parent may have left them ignored. Does nothing on an
    architecture whose call number is not known here.
    """
    call = _SYS_RT_SIGACTION.get(os.uname().machine)
    if call is not None:
        # SIG_DFL, no flags, an empty mask; large enough for every architecture.
        default = (ctypes.c_ulong * 8)()
        _checked(_libc.syscall(ctypes.c_long(call), ctypes.c_int(number), default, None, ctypes.c_size_t(8)))


def close_from(first: int) -> None:
    """Closes every descriptor from `first` on."""
    os.closerange(first, 0x7FFF_FFFF)


def close_on_exec_from(first: int) -> None:
    """Closes every descriptor from `first` on at the next exec."""
    result = _libc.syscall(
        ctypes.c_long(_SYS_CLOSE_RANGE),
        ctypes.c_uint(first),
        ctypes.c_uint(0xFFFF_FFFF),
        ctypes.c_uint(CLOSE_RANGE_CLOEXEC),
    )
    if result < 0:  # before Linux 5.11
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= first:
                try:
                    os.set_inheritable(int(name), False)
                except OSError:
                    pass  # the descriptor that listed the directory


def mask(*names: str) -> int:
    """Returns capabilities as a bit mask."""
    return sum(1 << CAPABILITIES[name] for name in names)


def _drop_from_bounding_set(capability: int) -> bool:
    """Returns False if the kernel does not know this capability, nor any after it."""
    try:
        _prctl(_PR_CAPBSET_DROP, capability)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def _prctl(option: int, *arguments: int) -> None:
    _checked(_libc.prctl(option, *(*arguments, 0, 0, 0, 0)[:4]))


def _number_of(call: dict[str, int]) -> int:
    number = call.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return number


def _path(path: str | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def _checked(result: int, path: str = "") -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path or None)
    return result
