"""Work on pods that takes time. Containers are started and stopped, their hooks are run (postStart, preStop), and pods
are removed, in tasks beside the pod loop.

Each piece of work runs only once at a time, even if it is requested again. It reports its outcome to `StepRequests`. If
it fails, the error is logged, and a step is requested a little later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from evenkeel.agent.probe_requests import DEFAULT_HOST, ask_http, printable
from evenkeel.agent.step_requests import (
    Cleaned,
    Emptied,
    HookFailed,
    NotStarted,
    PostStarted,
    Removed,
    Started,
    StepRequests,
)
from evenkeel.api.container import Container, LifecycleHandler
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.tree import Setting
from evenkeel.errors import EvenkeelError
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.runtime.interface import Attempt, ExecResult, Launch, Runtime
from evenkeel.runtime.start_errors import NotBegun, StartFailed

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_LEAST_GRACE_SECONDS = 2.0  # the least time that a container has after its preStop hook, as in kubelet
_HURRY_SECONDS = 0.5  # a stop whose deadline is this much earlier replaces the present stop


class PodWorker:
    def __init__(self, runtime: Runtime, steps: StepRequests) -> None:
        self._runtime = runtime
        self._steps = steps
        self._starting: set[Attempt] = set()
        self._stopping: dict[Attempt, tuple[float, asyncio.Task[None]]] = {}
        self._removing: set[str] = set()
        self._cleaned: set[str] = set()  # pods with only logs left, or being cleaned now
        self._cleaning: set[str] = set()
        self._without_logs: set[str] = set()  # of these, pods whose logs are removed too
        self._emptying: dict[str, asyncio.Task[None]] = {}
        self._hooks: dict[Attempt, set[asyncio.Future[str]]] = {}  # hooks that run now
        self._hooked: set[Attempt] = set()  # attempts whose preStop hook was begun
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, launch: Launch) -> None:
        if launch.attempt not in self._starting:
            self._starting.add(launch.attempt)
            self.spawn(self._start(launch), launch.attempt.uid)

    def is_starting(self, attempt: Attempt) -> bool:
        return attempt in self._starting

    def stop(self, attempt: Attempt, stop: Stop, pod: Pod, container: Container) -> None:
        """Stops the attempt. Its preStop hook runs first, within the same grace period."""
        deadline = asyncio.get_running_loop().time() + stop.grace_seconds
        before = self._stopping.get(attempt)
        if before is not None:
            if before[0] <= deadline + _HURRY_SECONDS:
                return
            before[1].cancel()
        task = self.spawn(self._stop(attempt, stop.grace_seconds, pod, container), attempt.uid)
        self._stopping[attempt] = (deadline, task)
        task.add_done_callback(lambda done: self._stopped(attempt, done))

    def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        self.spawn(self._runtime.update(attempt, settings), attempt.uid)

    def forget_attempt(self, attempt: Attempt) -> None:
        self._hooked.discard(attempt)
        for hook in self._hooks.pop(attempt, ()):
            hook.cancel()  # its container has ended
        self.spawn(self._runtime.forget(attempt), attempt.uid)

    def empty_memory(self, uid: str) -> None:
        """Empties the memory volumes of a pod that is evicted for memory. The runtime may need a while to remove the
        pod. Without this, other pods would be frozen or evicted in the meantime."""
        if uid not in self._emptying:
            task = self._emptying[uid] = self.spawn(self._empty_memory(uid), uid)
            task.add_done_callback(lambda _: self._emptying.pop(uid))

    def clean(self, uid: str) -> None:
        """Removes the volumes and directories of a pod that has ended. Its status and its logs stay."""
        if uid not in self._cleaned:
            self._cleaned.add(uid)
            self._cleaning.add(uid)
            self.spawn(self._clean(uid), uid)

    def is_clean(self, uid: str) -> bool:
        """Whether only the logs of the pod are left. Its attempts may then be counted from the beginning again."""
        return uid in self._cleaned and uid not in self._cleaning

    def clean_logs(self, uid: str) -> bool:
        """Removes the logs of a pod that is otherwise clean. Returns True once they are removed."""
        if uid not in self._without_logs and uid not in self._cleaning:
            self._cleaning.add(uid)
            self.spawn(self._clean_logs(uid), uid)
        return uid in self._without_logs

    def remove(self, uid: str) -> None:
        """Removes everything of a pod that is left. Its cgroups are already removed."""
        if uid not in self._removing:
            self._removing.add(uid)
            self.spawn(self._remove(uid), uid)

    def forget(self, uid: str) -> None:
        """Forgets the pod's clean-up, because the pod may start again."""
        self._cleaned.discard(uid)
        self._without_logs.discard(uid)

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def spawn(self, work: Coroutine[Any, Any, None], uid: str = "") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(done, uid))
        return task

    async def abandon(self) -> None:
        """Cancels all work. The next agent finds it unfinished, and finishes it."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self, launch: Launch) -> None:
        try:
            await self._runtime.prepare(launch.pod, launch.data)
            record = await self._runtime.start(launch)
        except NotBegun as error:
            self._steps.report(
                NotStarted(launch.attempt, str(error), error.reason, launch.container.image, error.event)
            )
        except (StartFailed, CgroupError) as error:
            self._steps.report(NotStarted(launch.attempt, str(error), image=launch.container.image))
        else:
            handler = launch.container.post_start if record.exit is None else None
            self._steps.report(Started(record, handler is not None, launch.container.image))
            if handler is not None:
                self.spawn(self._post_start(launch, handler), launch.attempt.uid)
        finally:
            self._starting.discard(launch.attempt)

    async def _post_start(self, launch: Launch, handler: LifecycleHandler) -> None:
        problem = await self._run_hook(
            launch.attempt, launch.pod, launch.container, handler, NO_TIMEOUT_SECONDS
        )
        if problem:
            self._steps.report(HookFailed(launch.attempt, POST_START_FAILED, problem))
        else:
            self._steps.report(PostStarted(launch.attempt))

    async def _stop(self, attempt: Attempt, grace_seconds: float, pod: Pod, container: Container) -> None:
        handler = container.pre_stop
        if handler is not None and grace_seconds > 0 and attempt not in self._hooked:
            self._hooked.add(attempt)  # a shorter grace period does not run the hook again
            began_at = asyncio.get_running_loop().time()
            problem = await self._run_hook(attempt, pod, container, handler, grace_seconds)
            if problem:
                self._steps.report(HookFailed(attempt, PRE_STOP_FAILED, problem))
            used_seconds = asyncio.get_running_loop().time() - began_at
            grace_seconds = max(grace_seconds - used_seconds, _LEAST_GRACE_SECONDS)
        await self._runtime.stop(attempt, grace_seconds)

    async def _run_hook(
        self,
        attempt: Attempt,
        pod: Pod,
        container: Container,
        handler: LifecycleHandler,
        timeout_seconds: float,
    ) -> str:
        """Returns why the hook failed. A hook whose container ends is given up, which is no failure."""
        own = self._runtime.addresses(pod)
        host = DEFAULT_HOST if own is None else next(iter(own), "")
        hook = asyncio.ensure_future(
            run_hook(handler, attempt, container, timeout_seconds, self._runtime.execute, host)
        )
        self._hooks.setdefault(attempt, set()).add(hook)
        try:
            await asyncio.wait([hook], timeout=timeout_seconds)
            if not hook.done():
                return f"it did not end within {timeout_seconds:g}s"
            return "" if hook.cancelled() else hook.result()
        finally:
            hook.cancel()
            if attempt in self._hooks:
                self._hooks[attempt].discard(hook)

    def _stopped(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        if attempt in self._stopping and self._stopping[attempt][1] is task:
            del self._stopping[attempt]

    async def _empty_memory(self, uid: str) -> None:
        await self._runtime.empty_memory(uid)
        self._steps.report(Emptied(uid))

    async def _clean(self, uid: str) -> None:
        try:
            await self._remove_whole(uid)
        except BaseException:
            self._cleaned.discard(uid)
            raise
        finally:
            self._cleaning.discard(uid)
        self._steps.report(Cleaned(uid))

    async def _clean_logs(self, uid: str) -> None:
        try:
            await self._runtime.remove_logs(uid)
        finally:  # a failure is logged; it must not prevent the pod's next start
            self._without_logs.add(uid)
            self._cleaning.discard(uid)
        self._steps.report(Cleaned(uid))

    async def _remove_whole(self, uid: str) -> None:
        if (emptying := self._emptying.get(uid)) is not None:
            # It must not empty the volumes of a pod that replaces this one.
            await asyncio.wait([emptying])
        await self._runtime.remove(uid)

    async def _remove(self, uid: str) -> None:
        try:
            await self._remove_whole(uid)
            self._steps.report(Cleaned(uid))
            await self._runtime.remove_logs(uid)
        finally:
            self._removing.discard(uid)
        self._steps.report(Removed(uid))

    def _done(self, task: asyncio.Task[None], uid: str) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._steps.want_step()
            return
        log.error("%s: %s", type(error).__name__, error)
        later: Callable[[], None] = lambda: self._steps.want_step(uid)  # noqa: E731
        task.get_loop().call_later(_RETRY_SECONDS, later)


POST_START_FAILED, PRE_STOP_FAILED = "FailedPostStartHook", "FailedPreStopHook"
# A postStart hook has no timeout in Kubernetes. It ends with its container.
NO_TIMEOUT_SECONDS = 24 * 3600.0
_EXEC_SLACK_SECONDS = 10.0

Execute = Callable[[Attempt, tuple[str, ...], float], Awaitable[ExecResult]]


async def run_hook(
    handler: LifecycleHandler,
    attempt: Attempt,
    container: Container,
    timeout_seconds: float,
    execute: Execute,
    host: str,
) -> str:
    """Returns why the hook failed; empty if it succeeded. `execute` is the method of the runtime. `host` is the address
    of the pod; empty if it is not known."""
    if handler.sleep is not None:
        await asyncio.sleep(min(handler.sleep.seconds, timeout_seconds))
        return ""
    if handler.http_get is not None:
        if not (host or handler.http_get.host):
            return "the pod's address is not known"
        answer = await ask_http(handler.http_get, container, timeout_seconds, host)
        return "" if answer.is_success else answer.message
    if handler.exec is None:
        return "the hook has no handler"
    try:
        async with asyncio.timeout(timeout_seconds + _EXEC_SLACK_SECONDS):
            result = await execute(attempt, handler.exec.command, timeout_seconds)
    except (EvenkeelError, OSError, TimeoutError) as error:
        return printable(str(error)) or "the command could not be run"
    if result.exit_code is None:
        return f"the command did not end within {timeout_seconds:g}s"
    if result.exit_code:
        output = printable(result.output)
        return f"the command ended with {result.exit_code}{': ' if output else ''}{output}"
    return ""
