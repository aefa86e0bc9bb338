"""The answers of the default filter, call by call: its program is run here as the kernel would run it."""

import ctypes
import errno
import os
import struct

import pytest

from evenkeel.runtime.process import seccomp

ALLOW, ERRNO = 0x7FFF_0000, 0x0005_0000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}  # linux/audit.h

CLONE_NEWUSER, CLONE_NEWNS, SIGCHLD = 0x1000_0000, 0x2_0000, 17
AF_INET, AF_VSOCK = 2, 40
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


def answer(name: str, *arguments: int) -> int:
    """What the filter returns for the call, on this machine's own architecture."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    architecture = ARCHITECTURES[os.uname().machine]
    data = struct.pack("=iIQ6Q", number_of(name), architecture, 0, *given)
    return run(seccomp.default_filter().instructions, data)


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


def test_no_socket_reaches_the_host_of_a_virtual_machine():
    assert answer("socket", AF_INET) == ALLOW
    assert answer("socket", AF_VSOCK) == EPERM


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
