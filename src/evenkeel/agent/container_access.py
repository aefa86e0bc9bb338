"""Finds the container that a client wants to reach into, and opens a session of its runtime.

Nothing of a session is recorded: not in the journal, not as an event, not in a log.
"""

import socket

from evenkeel.agent.pod_store import PodStore
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.runtime import pod_connections
from evenkeel.runtime.interface import Attempt, Runtime
from evenkeel.runtime.sessions import Session, SessionRefused, Streams, command_problem

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"  # an annotation


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
                return await pod_connections.connect(record.process, port)
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
            f'container "{name}" of pod "{pod.metadata.name}" does not run{_why(pod, name)}',
            hint=f"evenkeel describe pod {pod.metadata.name} says more",
        )


def chosen_container(pod: Pod, name: str) -> str:
    """The container of that name; without a name that of the annotation, or the first. Raises SessionRefused."""
    names = [container.name for container in pod.spec.every_container]
    wanted = name or pod.metadata.annotations.get(DEFAULT_CONTAINER, "") or pod.spec.containers[0].name
    if wanted not in names:
        raise SessionRefused(
            f'container "{wanted[:63]}" is not in pod "{pod.metadata.name}"; it has: {", ".join(names)}'
        )
    return wanted


def _why(pod: Pod, name: str) -> str:
    state = next((one.state for one in pod.status.every_container_status if one.name == name), None)
    if state is not None and state.waiting is not None:
        return f": it waits ({state.waiting.reason})"
    if state is not None and state.terminated is not None:
        return f": it has ended with exit code {state.terminated.exit_code}"
    return ""
