"""The agent's side of its helper processes, which outlive it: the supervisor of containers and the watch over memory.

Each listens on a socket in the state directory. The agent connects to the one that runs, or starts one.
"""

import asyncio
import os
import socket
import struct
from contextlib import suppress

_CREDENTIALS = struct.Struct("3i")


def connected_to(state: str, name: str, kind: socket.SocketKind) -> tuple[socket.socket, int] | None:
    """Connects to the process that listens on the socket `name` in the state directory. Returns the connection and the
    number of that process; None if none runs. Raises OSError if there is no such directory."""
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    client = socket.socket(socket.AF_UNIX, kind)
    try:
        client.connect(f"/proc/self/fd/{directory}/{name}")  # a path to a socket may be 107 bytes long
    except OSError:
        client.close()
        return None
    finally:
        os.close(directory)
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return client, _CREDENTIALS.unpack(credentials)[0]  # the number of the listening process


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
