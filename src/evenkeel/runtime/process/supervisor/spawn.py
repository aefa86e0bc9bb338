"""What a container's first process does between the fork and its program, in order.

It takes off all that is the supervisor's, enters the container's cgroup and takes its OOM score before anything else
(A17): all that follows counts as the container's already. Before the last step it waits for the word that it is
recorded. An error comes back through a socket as the two parts of a sentence.
"""

import fcntl
import gc
import json
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.seccomp import Filter
from evenkeel.runtime.process.supervisor import cgroup_entry, rootfs
from evenkeel.runtime.process.supervisor.program import (
    Program,
    User,
    enter_directory,
    execution_hint,
    look_up,
    passwd,
    program_path,
)

# And a cgroup namespace, which is made when the process is in its cgroup.
NAMESPACES = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWNS

# As `security` has them, which is too much to import here.
DEFAULT_CAPABILITIES = syscalls.mask(
    "audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "net_bind_service", "setfcap", "setgid",
    "setpcap", "setuid", "sys_chroot",
)  # fmt: skip
GRANTABLE_CAPABILITIES = DEFAULT_CAPABILITIES | syscalls.mask("ipc_lock", "lease", "net_raw", "wake_alarm")

_OPEN_FILES = (1024, 524288)  # systemd's own for services

ABOUT_TO_EXECUTE = b"exec"  # the last line of the report of a child in which nothing went wrong


class Plan(NamedTuple):
    """Everything a start needs, as the attempt's file `launch` has it. Paths are the host's where nothing is said."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # without HOME, the user's own is looked up
    cgroup: str  # the plan's path
    procs: tuple[str, ...]  # the files that take a child into the cgroup (`entry`), one a hierarchy
    log: str
    log_limits: tuple[int, ...]  # logs.LogLimits
    filesystem: dict[str, Any]  # rootfs.FilesystemSpec
    working_directory: str = ""  # in the container
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    hostname: str = ""
    oom_score_adj: int = 0
    message_policy: str = ""
    capabilities: int = DEFAULT_CAPABILITIES  # a mask
    is_filtered: bool = True  # securityContext.seccompProfile is RuntimeDefault
    may_gain_privileges: bool = False  # securityContext.allowPrivilegeEscalation


class Origin(NamedTuple):
    """What is the same for all children of a supervisor."""

    namespaces: int  # that they are cloned into
    owner: tuple[int, int]  # the supervisor's user and group
    filter: Callable[[], Filter]  # raises NoFilter


class Report(NamedTuple):
    """What a child told before it became its program, or did not."""

    error: str
    hint: str
    notes: tuple[str, ...]
    is_executed: bool


def plan_from(value: dict[str, Any]) -> Plan:
    """Raises KeyError, TypeError or ValueError if that is no plan."""
    # A plan of an older version lacks some that have a default.
    fields: dict[str, Any] = {
        name: value[name] for name in Plan._fields if name in value or name not in Plan._field_defaults
    }
    for name in ("argv", "procs", "log_limits", "groups"):
        fields[name] = tuple(fields.get(name, ()))
    fields["env"] = tuple((str(name), str(text)) for name, text in fields["env"])
    return Plan(**fields)


def be_container(
    plan: Plan, directory: str, entrances: tuple[str, ...], origin: Origin, orders: int, report: int
) -> NoReturn:
    """The whole life of a child before its program. `directory` is the attempt's, `entrances` are the files by which it
    has still to enter its cgroup. `orders` says that it may execute its program, or that it may not by its end;
    `report` is told notes and errors. Never returns, never raises."""

    def stand_alone() -> None:
        be_a_plain_process()
        ours, ours_to_say = keep_only(orders, report)
        say = partial(_say, ours_to_say)
        guarded(partial(_become, plan, directory, entrances, origin, ours, ours_to_say), say)

    guarded(stand_alone, partial(_say, report))


Say = Callable[[bytes], object]  # takes a line of the report


def _say(report: int, line: bytes) -> None:
    with suppress(OSError):
        os.write(report, line)


def guarded(act: Callable[[], None], say: Say) -> NoReturn:
    """Whatever happens, this process does not get back into the supervisor's loop."""
    try:
        act()
    except EvenkeelError as error:
        _report(say, error=error.message, hint=error.hint)
    except BaseException as error:  # noqa: BLE001
        why = reason(error) if isinstance(error, OSError) else repr(error)
        _report(say, error=f"the container could not be set up: {why}")
    finally:
        os._exit(1)
    raise AssertionError


def _become(
    plan: Plan, directory: str, entrances: tuple[str, ...], origin: Origin, orders: int, report: int
) -> None:
    say = partial(_say, report)
    os.setsid()
    if origin.namespaces & syscalls.CLONE_NEWUSER:
        map_own_user(origin.owner)
    cgroup_entry.enter(entrances, plan.cgroup)
    note = take_oom_score(plan.oom_score_adj)
    if note:
        _report(say, note=note)
    for number, name in ((1, supervisor_protocol.STDOUT), (2, supervisor_protocol.STDERR)):
        # For reading too: then writing never fails for want of a reader, should the supervisor be gone.
        os.dup2(os.open(f"{directory}/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), number)
        if plan.uid is not None and os.geteuid() == 0:
            os.fchown(number, plan.uid, -1)  # so that it may open /dev/stdout anew
    if origin.namespaces:
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        log = rootfs.enter(rootfs.from_json(plan.filesystem), has_pid_namespace=True)
        syscalls.set_hostname(plan.hostname)
        _hand_over(report, log)
    program = settle(plan, origin)
    syscalls.close_on_exec_from(3)
    if os.read(orders, 1):
        execute(program, say)


def _hand_over(report: int, log: int) -> None:
    """The supervisor reads the termination log when the container is gone, and its filesystem with it."""
    if log >= 0:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(report)) as connection:
            socket.send_fds(connection, [b"\n"], [log])
        os.close(log)


def be_a_plain_process() -> None:
    """Takes off what is the supervisor's own: signals that it ignores, and its way to hear of others."""
    gc.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def limit_programs(capabilities: int, *, among: int = -1) -> None:
    """From the next exec on, no program of this process or its children has a capability that is among these and not
    in `capabilities`. Raises EvenkeelError."""
    try:
        syscalls.drop_bounding_capabilities(among & ~capabilities)
    except OSError as error:
        raise EvenkeelError(f"the container's capabilities cannot be reduced: {reason(error)}") from None


def limit_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, most = _OPEN_FILES
    if hard != resource.RLIM_INFINITY and hard < most:
        most = hard
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most), most))


def take_oom_score(score: int) -> str:
    """Sets it, or where the kernel does not let us lower it so far, the lowest it allows; a note says so then."""
    path = "/proc/self/oom_score_adj"
    try:
        _write(path, str(score))
    except PermissionError:
        refused, allowed = score, int(_read(path))
        while allowed - refused > 1:
            between = (allowed + refused) // 2
            try:
                _write(path, str(between))
                allowed = between
            except PermissionError:
                refused = between
        return (
            f"oom_score_adj is {allowed} and not {score}: the kernel lets this user go no lower "
            "(CAP_SYS_RESOURCE is missing)"
        )
    return ""


def map_own_user(owner: tuple[int, int]) -> None:
    """In a user namespace of our own we are who we were (until it is mapped, nobody), with root's powers in it."""
    uid, gid = owner
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def settle(plan: Plan, origin: Origin) -> Program:
    """User, groups, powers, working directory and environment, inside the container's filesystem; and which program
    that is."""
    limit_open_files()
    if not plan.is_filtered:  # else it cannot reach the supervisor's, which is empty
        syscalls.join_new_session_keyring()
    user = look_up(plan.uid, plan.gid, passwd())
    env = dict(plan.env)
    env.setdefault("HOME", user.home)
    enter_directory(plan.working_directory)
    if not plan.may_gain_privileges:
        syscalls.set_no_new_privileges()
    if plan.is_filtered:
        instructions = origin.filter()
        syscalls.install_filter(instructions.instructions, instructions.length)
    if os.geteuid() == 0:
        _drop_powers(user, plan)
    program = Program(program_path(plan.argv[0], env.get("PATH", "")), plan.argv, env)
    # The last, since a change of user or capabilities may undo it. The memory is a copy of the supervisor's.
    syscalls.set_dumpable(is_dumpable=False)
    return program


def execute(program: Program, say: Say) -> None:
    """Returns only if that was not possible; the reason has been reported then."""
    say(ABOUT_TO_EXECUTE + b"\n")
    try:
        os.execve(program.path, program.argv, program.env)  # noqa: S606 no shell is the point
    except OSError as error:
        _report(
            say,
            error=f"command {program.argv[0]!r} cannot be executed: {reason(error)}",
            hint=execution_hint(error),
        )


def _report(say: Say, **said: str) -> None:
    say(json.dumps(said).encode() + b"\n")


def read_report(read: bytes) -> Report:
    error = hint = ""
    notes = []
    is_executed = False
    for line in read.splitlines():
        if line == ABOUT_TO_EXECUTE:
            is_executed = True
            continue
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if "note" in said:
            notes.append(str(said["note"]))
        if "error" in said:
            error, hint = str(said["error"]), str(said.get("hint", ""))
    return Report(error, hint, tuple(notes), is_executed)


def keep_only(*descriptors: int) -> tuple[int, ...]:
    """Closes all others but 0, 1 and 2. Those kept are then 3, 4 and so on."""
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in descriptors]
    for number, descriptor in enumerate(above, 3):
        os.dup2(descriptor, number, inheritable=False)
    syscalls.close_from(3 + len(above))
    return tuple(range(3, 3 + len(above)))


def _drop_powers(user: User, plan: Plan) -> None:
    limit_programs(plan.capabilities, among=GRANTABLE_CAPABILITIES)
    try:
        os.setgroups(sorted({*plan.groups}))
        if (user.gid, user.uid) != (os.getgid(), os.getuid()):
            os.setresgid(user.gid, user.gid, user.gid)
            os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        raise EvenkeelError(
            f"securityContext: cannot become user {user.uid} with group {user.gid}: {reason(error)}",
            hint="only root can give a container another user",
        ) from None
    syscalls.limit_capabilities(plan.capabilities)


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
