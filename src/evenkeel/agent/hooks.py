"""Runs lifecycle hooks of containers: postStart after a start, preStop before a stop."""

import asyncio
from collections.abc import Awaitable, Callable

from evenkeel.agent.probe_requests import ask_http, printable
from evenkeel.api.container import Container, LifecycleHandler
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.interface import Attempt, ExecResult

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
