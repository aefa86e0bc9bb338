"""The session of `evenkeel run`: the streams of the pod that it has made, from the start to the exit code.

Output comes from the log, which has every byte since the start and outlives a restart of the agent. Standard input goes
to the container itself. With a terminal, output comes from the container too: a log has whole lines, and a prompt is
not one.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evenkeel.cli.attached import Attached, attempt_is_over, is_ended, status_of
from evenkeel.cli.client import AgentRefused, Client, NoAgent
from evenkeel.cli.interactive import interact
from evenkeel.cli.output import printable
from evenkeel.errors import EvenkeelError

Json = dict[str, Any]
_RETRY_SECONDS = 0.5
_STDIN = 0
_CONFLICT = 409


class RunSession:
    """`removes`: the pod is deleted in the end."""

    def __init__(self, client: Client, namespace: str, name: str, container: str, *, removes: bool) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._container = container
        self._removes = removes
        self._attached = Attached(client, namespace, name, container)
        self._stops = 0

    def run(self, *, has_stdin: bool, is_terminal: bool) -> int:
        """Returns the exit code of the command."""
        if is_terminal:
            return self._at_terminal()
        if has_stdin:
            threading.Thread(target=self._send_input, daemon=True).start()
        return self._printed()

    # Without a terminal

    def _printed(self) -> int:
        attached = self._attached
        with self._stopping():
            try:
                pod = attached.stream()
            except BrokenPipeError:
                # The reader (`| head`) is gone. In an ordinary pipe the command would have ended.
                if self._removes or not attached.is_at_end:
                    attached.ask_to_stop(grace_seconds=None)
                    attached.finish()
                raise
        return self._ended(pod)

    def _send_input(self) -> None:
        """Runs in a thread of its own. The output is the log's."""
        from evenkeel.cli.remote import BrokenOff, Remote, Sinks, pod_path, relay

        flags = {"stdin": "true", "stdout": "false", "stderr": "false"}
        try:
            self._attached.wait_for(self._runs)
            path = pod_path(self._namespace, self._name, "attach")
            remote = Remote(self._client, path, [("container", self._container), *flags.items()])
            relay(remote, _STDIN, Sinks({}))
        except AgentRefused as refusal:
            if refusal.status != _CONFLICT:  # the container has ended
                self._attached.break_off(str(refusal))
        except (BrokenOff, NoAgent):
            self._attached.break_off(
                f"the agent ended while standard input was sent; pod/{self._name} runs on without the rest of it"
            )
        except EvenkeelError as error:
            self._attached.break_off(str(error))

    # At a terminal

    def _at_terminal(self) -> int:
        attached = self._attached
        with self._stopping():
            pod = attached.wait_for(self._runs)
            if is_ended(pod):  # the command ended before we attached
                return self._printed()
            attempt = status_of(pod, self._container).get("restartCount", 0) + 1
        try:
            self._interact()
        except SystemExit:  # a signal; the terminal is as it was
            self._remove()
            raise
        with self._stopping():
            pod = attached.wait_for(lambda pod: attempt_is_over(pod, self._container, attempt))
        if not attached.is_at_end:
            print(
                f"evenkeel: the session has ended; the container is started again: evenkeel attach -it {self._name}",
                file=sys.stderr,
            )
            self._remove()
            return 0
        return self._ended(pod)

    def _interact(self) -> None:
        """Returns when the container has ended. The container outlives the agent, and so does this."""
        from evenkeel.cli.remote import BrokenOff, pod_path

        is_first = True
        while True:
            try:
                end = interact(
                    self._client,
                    pod_path(self._namespace, self._name, "attach"),
                    [("container", self._container)],
                    has_stdin=True,
                    is_terminal=True,
                    redraws=not is_first,
                )
            except AgentRefused:
                return  # it does not run any more
            except (BrokenOff, NoAgent):
                if self._attached.is_at_end:
                    return
                is_first = False
                time.sleep(_RETRY_SECONDS)
                continue
            if end.problem:
                print(printable(f"evenkeel: {end.problem}"), file=sys.stderr)
            return

    # Both

    def _runs(self, pod: Json) -> bool:
        return "running" in status_of(pod, self._container).get("state", {})

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM asks the pod to end, the second kills it, the third leaves it."""

        def stop(number: int, frame: object) -> None:  # noqa: ARG001
            self._stops += 1
            if self._stops > 2:
                raise KeyboardInterrupt
            self._attached.ask_to_stop(grace_seconds=None if self._stops == 1 else 0.0)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remove(self) -> None:
        if self._removes:
            self._attached.ask_to_stop(grace_seconds=None)
            self._attached.finish()

    def _ended(self, pod: Json) -> int:
        self._remove()
        status = pod.get("status", {})
        container = status_of(pod, self._container)
        ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get(
            "terminated"
        )
        if status.get("reason"):
            self._print_reason(status)
        elif ended and ended.get("reason") not in ("Completed", "Error", None) and not self._stops:
            self._print_reason(ended)
        if ended is None:
            return 130 if self._stops else 1
        code: int = ended.get("exitCode", 0)
        return code or (1 if status.get("reason") else 0)

    def _print_reason(self, state: Json) -> None:
        message = f": {state['message']}" if state.get("message") else ""
        print(printable(f"evenkeel: pod/{self._name}: {state['reason']}{message}"), file=sys.stderr)
