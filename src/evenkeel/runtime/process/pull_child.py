"""The process that pulls an image, from its start to the execution of skopeo.

skopeo talks to servers that are not trusted. So it has a user of its own and no capability, sees this machine's files
read-only, and writes only to the staging directory, which it sees at /tmp. It ends with the agent.
"""

import os
import resource
import sys
from contextlib import suppress

from evenkeel.errors import reason
from evenkeel.runtime import syscalls

FAILED = 125  # the exit code if skopeo could not be executed
_USER = 2_147_480_017  # no account has this number: it is in no range that distributions or runtimes use
_PLACE = "/tmp"  # noqa: S108 a mount of its own covers it
_MEMORY_BYTES = 2 << 30
_LARGEST_FILE_BYTES = 32 << 30
_OPEN_FILES = 1024
_FILES = ("SSL_CERT_FILE", "CONTAINERS_REGISTRIES_CONF")  # variables with a path


def entry() -> None:
    """The arguments are: the agent's process, the staging directory, the program, and the arguments of the program."""
    agent, staging, *command = sys.argv[1:]
    try:
        _become_plain()
        _open_files()
        if os.geteuid() == 0:
            _enter(staging)
        else:
            os.chdir(staging)
        syscalls.set_no_new_privileges()
        syscalls.die_with_parent()  # after the change of user, which would undo it
        if os.getppid() != int(agent):
            sys.exit(FAILED)
        os.execv(command[0], command)  # noqa: S606 a shell must not be used
    except OSError as error:
        print(f"the image cannot be pulled by a process of its own: {reason(error)}", file=sys.stderr)
    sys.exit(FAILED)


def _become_plain() -> None:
    """Drops what an agent has and a child must not inherit: its OOM score, its priority, unlimited files and memory."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("0")
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    for which, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, _MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _LARGEST_FILE_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        with suppress(OSError, ValueError):
            resource.setrlimit(which, (most, most))
    os.umask(0o077)


def _open_files() -> None:
    """Opens files that variables name: the user that skopeo runs as may have no access to their directories."""
    for name in _FILES:
        with suppress(KeyError, OSError):
            descriptor = os.open(os.environ[name], os.O_RDONLY)
            os.set_inheritable(descriptor, True)
            os.environ[name] = f"/proc/self/fd/{descriptor}"


def _enter(staging: str) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC)
    tree = syscalls.open_tree(staging)
    os.chown(staging, _USER, _USER)
    syscalls.mount_setattr(
        "/", add=syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID, propagation=syscalls.MS_PRIVATE
    )
    syscalls.move_mount(tree, syscalls.AT_FDCWD, _PLACE)
    os.close(tree)
    os.chdir(_PLACE)
    syscalls.drop_bounding_capabilities(-1)
    os.setgroups([])
    os.setresgid(_USER, _USER, _USER)
    os.setresuid(_USER, _USER, _USER)
    syscalls.limit_capabilities(0)
