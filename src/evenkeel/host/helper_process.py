"""The agent's side of its helper processes, which outlive it: the supervisor of containers and the watch over memory.

Each listens on a socket in the state directory, and holds a lock there. The agent connects to the one that runs, or
starts one.
"""

import asyncio
import os
import signal
import socket
import struct
from contextlib import suppress

from evenkeel.host.descriptors import descriptors_of

_CREDENTIALS = struct.Struct("3i")
_GONE_SECONDS = 10.0  # after a kill: a process that is still there waits for a device


def connected_to(state: str, name: str, kind: socket.SocketKind) -> tuple[socket.socket, int] | None:
    """Connects to the process that listens on the socket `name` in the state directory. Returns the connection and the
    number of that process; None if none runs, or if it has not accepted many connections before this one. Raises
    OSError if there is no such directory."""
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    client = socket.socket(socket.AF_UNIX, kind)
    client.setblocking(False)  # else the kernel lets us wait until a process that hangs accepts
    try:
        client.connect(f"/proc/self/fd/{directory}/{name}")  # a path to a socket may be 107 bytes long
    except OSError:
        client.close()
        return None
    finally:
        os.close(directory)
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return client, _CREDENTIALS.unpack(credentials)[0]  # the number of the listening process


async def kill_holder(state: str, lock: str) -> int | None:
    """Kills the process that holds the file `lock` in the state directory locked, and waits until it is gone. For one
    that cannot be reached by its socket: it hangs, or the socket was removed. Returns its number; None if no process
    was found, or if it does not end."""
    try:
        there = os.stat(os.path.join(state, lock))
    except OSError:
        return None
    for pid in _lock_holders():
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue  # it has ended
        try:
            if pid != os.getpid() and _has_open(pid, lock, there):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return pid if await is_gone(pidfd, _GONE_SECONDS) else None
        except OSError:
            continue
        finally:
            os.close(pidfd)
    return None


async def is_gone(pidfd: int, seconds: float) -> bool:
    """Waits until the process has ended. Returns False if it has not ended in time."""
    descriptor = os.dup(pidfd)  # the caller may close its own descriptor meanwhile
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        async with asyncio.timeout(seconds):
            await gone.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return True


def reap_later(pid: int) -> None:
    """Reaps our child when it ends."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    loop.add_reader(descriptor, ended)


def _lock_holders() -> list[int]:
    """The processes that hold a lock of flock(2), on any file. How the kernel names a file depends on its
    filesystem."""
    found = []
    with suppress(OSError), open("/proc/locks", encoding="ascii", errors="replace") as file:
        for line in file:
            fields = line.split()  # one that waits for the lock has an arrow before the kind
            if len(fields) > 4 and fields[1] == "FLOCK" and fields[4].isdecimal():
                found.append(int(fields[4]))
    return found


def _has_open(pid: int, name: str, there: os.stat_result) -> bool:
    """Whether the process has this file open. Only files of that name are examined: to ask for the status of a file of
    a pod may take for ever, if a server has it."""
    for number in descriptors_of(f"/proc/{pid}"):
        link = f"/proc/{pid}/fd/{number}"
        with suppress(OSError):
            if os.readlink(link).endswith(f"/{name}") and os.path.samestat(os.stat(link), there):
                return True
    return False
