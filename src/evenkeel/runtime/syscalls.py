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
_SIGCHLD = int(signal.SIGCHLD)
_CLONE_CLEAR_SIGHAND = 0x1_0000_0000
_CLONE_INTO_CGROUP = 0x2_0000_0000

# mount(2)
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000

# umount2(2)
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
MOUNT_ATTR_IDMAP = 0x100000
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
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4  # without it, older kernels would slow the whole program down
_CAPABILITY_VERSION_3 = 0x2008_0522
_PROC_MAGIC = 0x9FA0  # the type of /proc in fstatfs(2)
_STATFS_BYTES = 256  # more than the structure has on any architecture; the type is its first word
_SOL_SOCKET, _SCM_RIGHTS = 1, 1  # on all architectures that are named below

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

_MACHINE = os.uname().machine

# PyDLL: the interpreter keeps its lock during a call. A fork would see only a copy of the lock.
_libc = ctypes.PyDLL(None, use_errno=True)
# For calls that may take the kernel a while: other threads run meanwhile.
_patient_libc = ctypes.CDLL(None, use_errno=True)


def _function(name: str, *types: type) -> "ctypes._NamedFuncPointer":
    """Looks a function of the C library up, with the types of its arguments. It is done once, here: a child of the
    supervisor would do it again, in memory that is copied for it."""
    function = _libc[name]
    function.argtypes = types
    return function


def _call(*types: type) -> "ctypes._NamedFuncPointer":
    """A system call by its number. `types` are those of its arguments."""
    function = _function("syscall", ctypes.c_long, *types)
    function.restype = ctypes.c_long
    return function


_Sizes2, _Sizes7 = ctypes.c_size_t * 2, ctypes.c_size_t * 7
_Words4, _Words11 = ctypes.c_uint64 * 4, ctypes.c_uint64 * 11
_CapabilityHeader, _CapabilitySets = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6

_int, _unsigned, _long, _size = ctypes.c_int, ctypes.c_uint, ctypes.c_ulong, ctypes.c_size_t
_text, _address = ctypes.c_char_p, ctypes.c_void_p

_umount2 = _patient_libc.umount2
_umount2.argtypes = (_text, _int)
_unshare = _function("unshare", _int)
_setns = _function("setns", _int, _int)
_mount = _function("mount", _text, _text, _text, _long, _text)
_pivot_root = _function("pivot_root", _text, _text)
_sethostname = _function("sethostname", _text, _size)
_setfsuid = _function("setfsuid", _unsigned)
_setfsgid = _function("setfsgid", _unsigned)
_prctl_of_libc = _function("prctl", _int, *4 * [_long])
_capget = _function("capget", _address, _address)
_capset = _function("capset", _address, _address)
_fstatfs = _function("fstatfs", _int, _address)
_sendmsg = _function("sendmsg", _int, _address, _int)
_clone = _call(_long, _long, _long, _long, _long)
_clone3 = _call(_address, _size)
_mount_setattr = _call(_int, _text, _unsigned, _address, _size)
_open_tree = _call(_int, _text, _unsigned)
_move_mount = _call(_int, _text, _int, _text, _unsigned)
_openat2 = _call(_int, _text, _address, _size)
_seccomp = _call(_unsigned, _unsigned, _address)
_keyctl = _call(_int, _address)
_rt_sigaction = _call(_int, _address, _address, _size)
_close_range = _call(_unsigned, _unsigned, _unsigned)


def unshare(flags: int) -> None:
    _checked(_unshare(flags))


def setns(descriptor: int, kinds: int) -> None:
    """Enters the namespace behind a descriptor of /proc/PID/ns/…, or the namespaces of the given kinds of a pidfd."""
    _checked(_setns(descriptor, kinds))


def clone(flags: int, number_at: int = 0) -> int:
    """Forks into new namespaces. Returns 0 in the child.

    It is only for a process with one thread, and the child must exec soon: Python's own fork hooks are not run. The
    kernel writes the child's number (4 bytes) to the address `number_at` before the child runs. Raises OSError with
    ENOSYS on an architecture whose call number is not known here.
    """
    number = _number_of(_SYS_CLONE)
    if number_at:
        flags |= _CLONE_PARENT_SETTID
    return _checked(_clone(number, flags | _SIGCHLD, 0, number_at, 0, 0))


def clone_clean(flags: int = 0, cgroup: int = -1) -> int:
    """Forks as `clone` does. In the child, no signal has a handler; ignored signals stay ignored. Linux 5.5.

    With `cgroup`, a descriptor of the directory of a cgroup (v2), the child is in this cgroup from the beginning.
    Linux 5.7.
    """
    flags |= _CLONE_CLEAR_SIGHAND | (_CLONE_INTO_CGROUP if cgroup >= 0 else 0)
    # The fields at 0: descriptors and addresses for numbers, a stack, thread-local storage, a chosen number.
    arguments = _Words11(flags, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, max(cgroup, 0))
    return _checked(_clone3(_SYS_CLONE3, arguments, ctypes.sizeof(arguments)))


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    made = _mount(_path(source), os.fsencode(target), _path(kind), flags, os.fsencode(data) or None)
    _checked(made, target)


def umount(target: str, flags: int = 0, tolerated: tuple[int, ...] = ()) -> None:
    """`tolerated` are the errors that are not raised."""
    if _umount2(os.fsencode(target), flags) < 0 and ctypes.get_errno() not in tolerated:
        _checked(-1, target)


def pivot_root(new_root: str, put_old: str) -> None:
    _checked(_pivot_root(os.fsencode(new_root), os.fsencode(put_old)), new_root)


def mount_setattr(
    path: str,
    *,
    add: int = 0,
    clear: int = 0,
    propagation: int = 0,
    flags: int = AT_RECURSIVE,
    dir_fd: int = AT_FDCWD,
    users: int = 0,
) -> None:
    """Sets MOUNT_ATTR_… of a mount and (AT_RECURSIVE) of all mounts below it. Linux 5.12; before, ENOSYS.

    With MOUNT_ATTR_IDMAP, `users` is a descriptor of a user namespace: what belongs to N on the filesystem belongs to
    the namespace's N in the mount. The mount must not be attached yet.
    """
    attributes = _Words4(add, clear, propagation, users)
    done = _mount_setattr(
        _SYS_MOUNT_SETATTR, dir_fd, os.fsencode(path), flags, attributes, ctypes.sizeof(attributes)
    )
    _checked(done, path)


def open_tree(path: str, flags: int = OPEN_TREE_CLONE, dir_fd: int = AT_FDCWD) -> int:
    """Opens a mount, or with OPEN_TREE_CLONE a copy that is not attached yet (`move_mount`). Linux 5.2."""
    opened = _open_tree(_SYS_OPEN_TREE, dir_fd, os.fsencode(path), flags | OPEN_TREE_CLOEXEC)
    return _checked(opened, path)


def move_mount(from_fd: int, to_fd: int, to_path: str = "") -> None:
    """Attaches a mount of `open_tree` at the descriptor `to_fd`, or at `to_path` relative to it. Linux 5.2."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if to_path else MOVE_MOUNT_T_EMPTY_PATH)
    moved = _move_mount(_SYS_MOVE_MOUNT, from_fd, b"", to_fd, os.fsencode(to_path), flags)
    _checked(moved, to_path)


def open_within(directory: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """openat2: opens `path` from `directory`, with bounds (RESOLVE_…) on symlinks and mounts. Linux 5.6.

    The call fails with EAGAIN if a path changes meanwhile. The caller then tries again.
    """
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode, resolve)
    return _checked(_openat2(_SYS_OPENAT2, directory, os.fsencode(path), how, ctypes.sizeof(how)), path)


class _PassedDescriptor(ctypes.Structure):  # a control message
    _fields_ = (
        ("length", ctypes.c_size_t),
        ("level", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("descriptor", ctypes.c_int),
    )


def is_proc(descriptor: int) -> bool:
    """Whether the file is one of the kernel's own in a /proc."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    _checked(_fstatfs(descriptor, status))
    return ctypes.c_long.from_buffer(status).value == _PROC_MAGIC


def send_descriptor(connection: int, descriptor: int) -> None:
    """Sends a descriptor, with a line feed, through a Unix socket. It does less than `socket.send_fds`."""
    content = ctypes.c_char(b"\n")
    vector = _Sizes2(ctypes.addressof(content), 1)
    length = _PassedDescriptor.descriptor.offset + _PassedDescriptor.descriptor.size
    control = _PassedDescriptor(length, _SOL_SOCKET, _SCM_RIGHTS, descriptor)
    # `struct msghdr`: no address, one buffer, one control message, no flags.
    message = _Sizes7(0, 0, ctypes.addressof(vector), 1, ctypes.addressof(control), ctypes.sizeof(control), 0)
    _checked(_sendmsg(connection, message, 0))


def set_hostname(name: str) -> None:
    encoded = os.fsencode(name)
    _checked(_sethostname(encoded, len(encoded)))


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


def keep_capabilities() -> None:
    """From now on, a change of users takes no capabilities away; until the next user namespace."""
    _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)


def set_file_owner(uid: int, gid: int) -> None:
    """Sets the owner of files that this process makes."""
    _setfsuid(uid)
    _setfsgid(gid)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_filter(instructions: bytes, count: int) -> None:
    """Installs a filter: this process and its descendants may make only the system calls that it allows.

    Needs `set_no_new_privileges`, or CAP_SYS_ADMIN. Raises OSError with ENOSYS on an architecture not known here.
    """
    program = _FilterProgram(count, instructions)
    _checked(
        _seccomp(
            _number_of(_SYS_SECCOMP),
            _SECCOMP_SET_MODE_FILTER,
            _SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            ctypes.addressof(program),
        )
    )


def join_new_session_keyring() -> None:
    """Gives this process a new, empty session keyring. It can no longer use the keys of its old session.

    It has no effect on a kernel without keys.
    """
    try:
        _checked(_keyctl(_number_of(_SYS_KEYCTL), _KEYCTL_JOIN_SESSION_KEYRING, None))
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
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    sets = _CapabilitySets()  # effective, permitted, inheritable: low words, then high words
    _checked(_capget(header, sets))
    for half in (0, 1):
        for which in (0, 1):
            sets[3 * half + which] &= kept >> 32 * half & 0xFFFF_FFFF
        sets[3 * half + 2] = 0
    _checked(_capset(header, sets))
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
    call = _SYS_RT_SIGACTION.get(_MACHINE)
    if call is not None:
        # SIG_DFL, no flags, an empty mask; large enough for every architecture.
        default = (ctypes.c_ulong * 8)()
        _checked(_rt_sigaction(call, number, default, None, 8))


def close_from(first: int) -> None:
    """Closes every descriptor from `first` on."""
    os.closerange(first, 0x7FFF_FFFF)


def close_on_exec_from(first: int) -> None:
    """Closes every descriptor from `first` on at the next exec."""
    result = _close_range(_SYS_CLOSE_RANGE, first, 0xFFFF_FFFF, CLOSE_RANGE_CLOEXEC)
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
    _checked(_prctl_of_libc(option, *(*arguments, 0, 0, 0, 0)[:4]))


def _number_of(call: dict[str, int]) -> int:
    number = call.get(_MACHINE)
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
