"""Reaches into containers for a client: finds the container and opens a session of its runtime, or connects to a port
of its pod.

Nothing of a session is recorded: not in the journal, not as an event, not in a log.

A connection to a port is made in the pod's own network namespace. A socket belongs to the namespace of the thread that
made it. So a thread enters the namespace, makes the socket and ends. It never does anything else, and no other thread
changes its namespace.
"""

import asyncio
import os
import socket
import threading
from functools import partial

from evenkeel.agent.pod_store import PodStore
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.errors import reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.interface import Attempt, Runtime
from evenkeel.runtime.procfs import Process, start_ticks
from evenkeel.runtime.sessions import Session, SessionRefused, Streams, command_problem

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"  # an annotation
_CONNECT_SECONDS = 10.0
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class ContainerAccess:
    def __init__(self, runtime: Runtime, pod_store: PodStore) -> None:
        self._runtime = runtime
        self._pod_store = pod_store

    async def open_exec(self, key: str, container: str, command: tuple[str, ...], wanted: Streams) -> Session:
        problem = command_problem(command)
        if problem:
            raise SessionRefused(problem)
        attempt, _ = await self._running(key, container)
        return await self._runtime.open_session(attempt, command, wanted)

    async def open_attach(self, key: str, container: str, wanted: Streams) -> Session:
        attempt, spec = await self._running(key, container)
        if wanted.stdin and not spec.stdin:
            raise SessionRefused(
                f'container "{spec.name}" has no standard input',
                hint="leave -i out, or write stdin: true in its manifest",
            )
        # A container has a terminal or not; its client cannot change that.
        return await self._runtime.attach(attempt, spec, wanted._replace(terminal=spec.tty))

    async def open_port(self, key: str, port: int) -> socket.socket:
        pod = self._pod_store.shown_by_key(key)
        uid = pod.metadata.uid if pod is not None else ""
        for attempt, record in (await self._runtime.containers()).items():
            if attempt.uid == uid and record.exit is None and record.process is not None:
                return await connect(record.process, port)
        raise SessionRefused(f'no container of pod "{key}" runs')

    async def _running(self, key: str, container: str) -> tuple[Attempt, Container]:
        """Returns the container and its attempt that runs now. Raises SessionRefused."""
        pod = self._pod_store.shown_by_key(key)
        if pod is None:
            raise SessionRefused(f'there is no pod "{key}"')
        name = chosen_container(pod, container)
        uid = pod.metadata.uid
        spec = next(one for one in pod.spec.every_container if one.name == name)
        for attempt, record in (await self._runtime.containers()).items():
            if (attempt.uid, attempt.container) == (uid, name) and record.exit is None:
                return attempt, spec
        raise SessionRefused(
            f'container "{name}" of pod "{pod.metadata.name}" does not run{_not_running_text(pod, name)}',
            hint=f"evenkeel describe pod {pod.metadata.name} says more",
        )


def chosen_container(pod: Pod, name: str) -> str:
    """The container of that name. Without a name it is the container that the annotation names, or the first one.
    Raises SessionRefused."""
    names = [container.name for container in pod.spec.every_container]
    wanted = name or pod.metadata.annotations.get(DEFAULT_CONTAINER, "") or pod.spec.containers[0].name
    if wanted not in names:
        raise SessionRefused(
            f'container "{wanted[:63]}" is not in pod "{pod.metadata.name}"; it has: {", ".join(names)}'
        )
    return wanted


def _not_running_text(pod: Pod, name: str) -> str:
    state = next((one.state for one in pod.status.every_container_status if one.name == name), None)
    if state is not None and state.waiting is not None:
        return f": it waits ({state.waiting.reason})"
    if state is not None and state.terminated is not None:
        return f": it has ended with exit code {state.terminated.exit_code}"
    return ""


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
