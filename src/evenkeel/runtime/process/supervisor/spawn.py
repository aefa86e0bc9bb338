"""The steps of a container's first process between the fork and its program, in order.

First it drops the supervisor's state, enters the container's cgroup and sets its OOM score (A17), so that all later
steps count as the container's. Before the last step it waits for the message that it is recorded. Notes and errors
go to the supervisor (`child_reports`).
"""

import base64
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.seccomp import NO_FILTER, Filter
from evenkeel.runtime.process.supervisor import cgroup_entry, child_reports, rootfs, streams
from evenkeel.runtime.process.supervisor.program import (
    Program,
    User,
    enter_directory,
    execution_hint,
    exit_code_of,
    group_file,
    groups_of,
    look_up,
    passwd,
    program_path,
)
from evenkeel.runtime.process.supervisor.start_plan import Plan
from evenkeel.runtime.process.supervisor.users import HOST_USERS, Users

GRANTABLE_CAPABILITIES = syscalls.mask(*syscalls.GRANTABLE_CAPABILITIES)

_OPEN_FILES = (1024, 524288)  # systemd's default for services


class Origin(NamedTuple):
    """Settings that are the same for all children of a supervisor."""

    namespaces: int  # the new namespaces of each child
    owner: tuple[int, int]  # the supervisor's user and group
    filter: Callable[[int], Filter]  # of a container with these capabilities; raises NoFilter


class Start(NamedTuple):
    """Everything that a child needs to become its container."""

    plan: Plan
    spec: rootfs.FilesystemSpec  # the plan's filesystem
    directory: str  # the attempt's
    entrances: tuple[str, ...]  # the files through which it has still to enter its cgroup
    origin: Origin
    orders: int  # carries the order to execute the program; if it is closed instead, the child ends
    report: int  # takes notes and errors


def be_container(start: Start) -> NoReturn:
    """Runs a child up to its program. Never returns, never raises."""
    child_reports.guarded(partial(_become, start), partial(child_reports.say_through, start.report))


def _become(start: Start) -> None:
    plan, origin, report = start.plan, start.origin, start.report
    keep_only(start.orders, report)
    say = partial(child_reports.say_through, report)
    os.setsid()
    users = Users(plan.user_namespace, plan.first_id) if plan.user_namespace else HOST_USERS
    hide_memory()
    if origin.namespaces & syscalls.CLONE_NEWUSER:
        map_own_user(origin.owner)
    cgroup_entry.enter(start.entrances, plan.cgroup)
    note = take_oom_score(plan.oom_score_adj)
    if note:
        child_reports.tell(say, note=note)
    if not plan.terminal:
        streams.take_pipes(start.directory, has_stdin=plan.stdin, stdin_ends=plan.stdin_once)
        give_streams(plan)  # here: the host's files are read-only inside
    if plan.network:
        _enter_network(plan.network)
    if plan.sysctls:
        _set_sysctls(plan, origin.namespaces & ~plan.other_namespaces)
    if origin.namespaces:
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        log = rootfs.enter(start.spec, has_pid_namespace=True, users=users)
        syscalls.set_hostname(plan.hostname)
        if log >= 0:  # the supervisor reads it when the container and its files are gone
            streams.hand_over(report, log)
    if plan.terminal:
        device = streams.IN_CONTAINER if origin.namespaces else streams.ON_HOST
        streams.hand_over(report, streams.take_terminal(device))
        give_streams(plan)
    users.enter()
    program = settle(plan, origin)
    syscalls.close_on_exec_from(3)
    if os.read(start.orders, 1):
        execute(program, say)


def hide_memory() -> None:
    """Keeps other processes from inspecting this process. Its memory is a copy of the supervisor's, and other
    containers may see it already: those of the pod, if they share its processes, and those with hostPID.

    Without root, such containers cannot be had, and this process could not write to its own files in /proc any more.
    """
    if os.geteuid() == 0:
        syscalls.set_dumpable(is_dumpable=False)


def give_streams(plan: Plan) -> None:
    streams.give_to(plan.host_user(plan.uid), plan.first_id if plan.user_namespace else -1)


def _set_sysctls(plan: Plan, own_namespaces: int) -> None:
    """Writes the settings of our namespaces. In the host's namespaces they would be the host's, so none is written."""
    for name, value in plan.sysctls:
        is_ours = plan.network if name.startswith("net.") else own_namespaces & syscalls.CLONE_NEWIPC
        if not is_ours:
            raise EvenkeelError(f"sysctl {name} cannot be set: the pod has no namespace of its own for it")
        try:
            _write(f"/proc/sys/{name.replace('.', '/')}", value)
        except OSError as error:
            raise EvenkeelError(
                f"sysctl {name} cannot be set to {value!r}: {reason(error)}", hint="look for it in sysctls"
            ) from None


def _enter_network(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        syscalls.setns(descriptor, syscalls.CLONE_NEWNET)
    except OSError as error:
        raise EvenkeelError(f"the pod's network {path} cannot be entered: {reason(error)}") from None
    os.close(descriptor)


def limit_programs(capabilities: int, *, among: int = -1) -> None:
    """Reduces the capabilities of programs. Raises EvenkeelError.

    From the next exec on, no program of this process or its children has a capability that is in `among` and not in
    `capabilities`.
    """
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
    """Sets the OOM score. If the kernel refuses, it sets the lowest score that the kernel allows and returns a note."""
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
    """Maps our user in our new user namespace. We keep our user number, with root's capabilities inside it.

    Until the mapping is written, we run as the user `nobody`.
    """
    uid, gid = owner
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def settle(plan: Plan, origin: Origin) -> Program:
    """Sets user, groups, capabilities, working directory and environment. Returns the program to execute.

    It is called inside the container's filesystem.
    """
    limit_open_files()
    if not plan.is_filtered:  # a filtered process cannot reach the supervisor's keyring, which is empty
        syscalls.join_new_session_keyring()
    user = look_up(plan.uid, plan.gid, passwd(), plan.image_user)
    if plan.must_not_be_root and user.uid == 0:
        raise EvenkeelError(
            "securityContext.runAsNonRoot is true, and the container would run as root",
            hint="set runAsUser to a number above 0",
        )
    if plan.image_user and plan.uid is None:
        streams.give_to(user.uid)
    env = dict(plan.env)
    env.setdefault("HOME", user.home)
    enter_directory(plan.working_directory, is_made=bool(plan.filesystem.get("image")))
    if not plan.may_gain_privileges:
        syscalls.set_no_new_privileges()
    if plan.app_armor_profile:
        _confine_programs(plan.app_armor_profile)
    own = Filter(base64.b64decode(plan.own_filter)) if plan.own_filter else NO_FILTER
    if own.length and plan.may_gain_privileges:
        # Without no_new_privs it can be installed only with the powers that are dropped below.
        syscalls.install_filter(own.instructions, own.length)
        own = NO_FILTER
    if plan.is_filtered:
        instructions = origin.filter(plan.capabilities)
        syscalls.install_filter(instructions.instructions, instructions.length)
    if os.geteuid() == 0:
        _drop_powers(user, plan)
    program = Program(program_path(plan.argv[0], env.get("PATH", "")), plan.argv, env, own)
    # This is the last step, since a change of user or capabilities may undo it. The memory is a copy of the
    # supervisor's.
    syscalls.set_dumpable(is_dumpable=False)
    return program


def _confine_programs(profile: str) -> None:
    """The next program that this process executes, and all after it, have the AppArmor profile.

    An image or a volume may have put something else at /proc, where a request would go nowhere (CVE-2019-16884).
    """
    for path in ("/proc/self/attr/apparmor/exec", "/proc/self/attr/exec"):
        try:
            _write(path, f"exec {profile}", must_be_proc=True)
        except FileNotFoundError:
            # The kernel is older than 5.8. Or no profile has this name, which the other file reports too.
            continue
        except OSError as error:
            raise EvenkeelError(f"AppArmor profile {profile!r} cannot be applied: {reason(error)}") from None
        return
    raise EvenkeelError(
        f"AppArmor profile {profile!r} is not loaded", hint="load it (apparmor_parser), or name another one"
    )


def execute(program: Program, say: child_reports.Say) -> None:
    """Executes the program. Returns only on failure; the reason has been reported then."""
    if program.own_filter.length:
        # As late as possible: a profile may refuse everything but the program's own calls.
        syscalls.install_filter(program.own_filter.instructions, program.own_filter.length)
    say(child_reports.ABOUT_TO_EXECUTE + b"\n")
    try:
        os.execve(program.path, program.argv, program.env)  # noqa: S606 a shell must not be used
    except OSError as error:
        child_reports.tell(
            say,
            error=f"command {program.argv[0]!r} cannot be executed: {reason(error)}",
            hint=execution_hint(error),
            exit_code=exit_code_of(error),
        )


def keep_only(*descriptors: int) -> None:
    """Closes all descriptors but these and 0, 1 and 2."""
    first = 3
    for kept in sorted(descriptors):
        os.closerange(first, kept)
        first = max(first, kept + 1)
    syscalls.close_from(first)


def _drop_powers(user: User, plan: Plan) -> None:
    # In a new user namespace a process has all capabilities again, those that the supervisor gave up included.
    limit_programs(plan.capabilities, among=-1 if plan.user_namespace else GRANTABLE_CAPABILITIES)
    try:
        of_image = groups_of(user.name, group_file()) if plan.has_image_groups else ()
        os.setgroups(sorted({*plan.groups, *of_image}))
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


def _write(path: str, text: str, *, must_be_proc: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if must_be_proc and not syscalls.is_proc(descriptor):
            raise EvenkeelError(f"{path} is not the kernel's in this container: mount nothing at /proc")
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
