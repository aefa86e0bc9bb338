"""Connections to ports of a pod, made in the pod's own network namespace.

A socket belongs to the namespace of the thread that made it. So a thread enters the namespace, makes the socket and
ends. It never does anything else, and no other thread changes its namespace.
"""

import asyncio
import os
import socket
import threading
from functools import partial

from evenkeel.errors import reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.procfs import Process, start_ticks
from evenkeel.runtime.sessions import SessionRefused

_CONNECT_SECONDS = 10.0
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


async def connect(process: Process, port: int) -> socket.socket:
    """Connects to the port at the loopback of the namespace in which the process is. Raises SessionRefused."""
    loop = asyncio.get_running_loop()
    problem = ""
    for family, address in _LOOPBACK:
        try:
            one = await _made(process, family)
        except OSError as error:
            problem = problem or reason(error)
            continue
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await loop.sock_connect(one, (address, port))
        except (OSError, TimeoutError) as error:
            one.close()
            problem = problem or ("no answer" if isinstance(error, TimeoutError) else reason(error))
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise SessionRefused(f"port {port} of the pod cannot be reached: {problem}")


async def _made(process: Process, family: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    made: asyncio.Future[socket.socket] = loop.create_future()

    def settle(result: socket.socket | None, error: BaseException | None) -> None:
        if made.cancelled():
            if result is not None:
                result.close()
        elif result is not None:
            made.set_result(result)
        elif error is not None:
            made.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = _make(process, family)
        except OSError as failed:
            error = failed
        loop.call_soon_threadsafe(partial(settle, result, error))

    threading.Thread(target=work, name="evenkeel-port", daemon=True).start()
    return await made


def _make(process: Process, family: int) -> socket.socket:
    """Makes a socket in the namespace of the process. Leaves this thread there."""
    path = f"/proc/{process.pid}/ns/net"
    namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if start_ticks(process.pid) != process.start_ticks:
            raise ProcessLookupError(3, "the container has ended meanwhile")
        theirs, ours = os.fstat(namespace), os.stat("/proc/thread-self/ns/net")
        if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
            syscalls.setns(namespace, syscalls.CLONE_NEWNET)
    finally:
        os.close(namespace)
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
