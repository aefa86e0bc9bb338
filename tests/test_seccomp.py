"""The answers of the default filter, call by call: its program is run here as the kernel would run it."""

import ctypes
import errno
import fcntl
import os
import struct

import pytest

from evenkeel.runtime.process import seccomp

ALLOW, ERRNO = 0x7FFF_0000, 0x0005_0000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}  # linux/audit.h

CLONE_NEWUSER, CLONE_NEWNS, SIGCHLD = 0x1000_0000, 0x2_0000, 17
AF_INET, AF_ALG, AF_VSOCK, AF_MCTP = 2, 38, 40, 45
OTHER_HALF = 1 << 32  # of a register, where the kernel looks at 32 bits
I386 = 0x4000_0003  # linux/audit.h
LEASE = 1 << 28  # linux/capability.h
NO_COMMANDS = ("F_RDLCK", "F_WRLCK", "F_UNLCK", "F_EXLCK", "F_SHLCK")  # they are kinds of locks
MSEAL = 462  # the last call of Linux 6.10
NEVER_IMPLEMENTED = (
    "afs_syscall",
    "getpmsg",
    "putpmsg",
    "security",
    "tuxcall",
    "vserver",
    "epoll_ctl_old",
    "epoll_wait_old",
)


def number_of(name: str) -> int:
    return int(ctypes.CDLL(seccomp.LIBRARY).seccomp_syscall_resolve_name(name.encode()))


def answer(name: str, *arguments: int, has_leases: bool = False) -> int:
    """What the filter returns for the call, on this machine's own architecture."""
    architecture = ARCHITECTURES[os.uname().machine]
    return answer_of(seccomp.default_filter(has_leases=has_leases), number_of(name), architecture, *arguments)


def answer_of(compiled: seccomp.Filter, number: int, architecture: int, *arguments: int) -> int:
    given = [*arguments, *[0] * (6 - len(arguments))]
    return run(compiled.instructions, struct.pack("=iIQ6Q", number, architecture, 0, *given))


def run(program: bytes, data: bytes) -> int:
    """The few instructions of classic BPF that libseccomp uses."""
    instructions = [*struct.iter_unpack("HBBI", program)]
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x25:
                at += if_true if accumulator > value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return value
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.mark.parametrize(
    "name", ["read", "execve", "pause", "clock_adjtime", "futex", "ptrace", "epoll_pwait2"]
)
def test_calls_of_ordinary_programs_are_allowed(name):
    assert answer(name) == ALLOW


@pytest.mark.parametrize(
    "name", ["unshare", "mount", "keyctl", "bpf", "io_uring_setup", "open_by_handle_at", "mbind"]
)
def test_calls_that_reach_beyond_the_container_are_refused(name):
    assert answer(name) == EPERM


def test_a_process_is_cloned_but_no_namespace():
    assert answer("clone", SIGCHLD) == ALLOW
    assert answer("clone", SIGCHLD | CLONE_NEWUSER) == EPERM
    assert answer("clone", SIGCHLD | CLONE_NEWUSER | CLONE_NEWNS) == EPERM


def test_clone3_seems_not_to_exist_so_that_programs_use_clone():
    assert answer("clone3") == ENOSYS


@pytest.mark.parametrize("half", [0, OTHER_HALF])
def test_no_socket_reaches_the_host_of_a_virtual_machine_or_the_kernels_ciphers(half):
    for family in range(AF_MCTP + 1):
        refused = family in (AF_ALG, AF_VSOCK)
        assert answer("socket", family | half) == (EPERM if refused else ALLOW), family


@pytest.mark.parametrize("half", [0, OTHER_HALF])
def test_a_lease_takes_its_capability(half):
    commands = {
        value: name for name, value in vars(fcntl).items() if name.startswith("F_") and name.isupper()
    }
    commands = {value: name for value, name in commands.items() if name not in NO_COMMANDS}
    assert {fcntl.F_SETLEASE, fcntl.F_GETLEASE, fcntl.F_DUPFD_CLOEXEC, fcntl.F_OFD_SETLKW} <= set(commands)
    for command, name in commands.items():
        is_lease = command == fcntl.F_SETLEASE
        assert answer("fcntl", 0, command | half) == (EPERM if is_lease else ALLOW), name
        assert answer("fcntl", 0, command | half, has_leases=True) == ALLOW, name


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="about 32-bit programs of x86")
def test_a_32_bit_program_makes_its_sockets_by_a_call_that_a_filter_can_look_at():
    compiled = seccomp.default_filter()
    socketcall, socket, fcntl64 = 102, 359, 221
    assert {answer_of(compiled, socketcall, I386, kind) for kind in range(1, 21)} == {EPERM}
    assert answer_of(compiled, socket, I386, AF_INET) == ALLOW
    assert answer_of(compiled, socket, I386, AF_VSOCK) == EPERM
    assert answer_of(compiled, fcntl64, I386, 0, fcntl.F_SETLEASE) == EPERM


def test_no_filter_is_compiled_by_a_child_which_may_be_inside_a_containers_files(monkeypatch):
    def missing() -> ctypes.CDLL:
        raise seccomp.NoFilter("libseccomp.so.2 is not installed")

    filters = seccomp.Filters()
    seccomp.default_filter.cache_clear()
    with monkeypatch.context() as without:
        without.setattr(seccomp, "_library", missing)
        filters.compile()
    for capabilities in (0, LEASE):
        with pytest.raises(seccomp.NoFilter):
            filters.of(capabilities)
    filters.compile()
    assert filters.of(LEASE) is seccomp.default_filter(has_leases=True)
    assert filters.of(0) is filters.of(~LEASE) is seccomp.default_filter(has_leases=False)


def test_every_call_up_to_linux_6_10_is_in_one_of_the_lists():
    library = ctypes.CDLL(seccomp.LIBRARY)
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
    architecture = ctypes.c_uint32(ARCHITECTURES[os.uname().machine])
    found = (
        library.seccomp_syscall_resolve_num_arch(architecture, ctypes.c_int(number))
        for number in range(MSEAL + 1)
    )
    names = {ctypes.string_at(name).decode() for name in found if name}
    assert {"read", "pause", "mount"} <= names
    forgotten = {name for name in names if answer(name) == ENOSYS}
    assert forgotten <= {"clone3", *NEVER_IMPLEMENTED}
