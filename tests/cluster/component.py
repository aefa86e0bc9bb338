"""One program of the control plane as a process: started, stopped, paused, killed; ended by its number, with a log."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

# An API server that is told to end waits a minute for those that watch, and they do not go.
STOPPED_SECONDS = 5.0
LAST_BYTES = 3000
# Go maps more than it uses.
HARD_BOUND = 4


class Component:
    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, within: Sequence[str], memory_bytes: int
    ) -> None:
        """`within` is a command that executes its arguments, in another namespace. Towards `memory_bytes` Go collects
        its garbage harder; far above them it gets no more memory."""
        self.name = name
        self.log = log
        bounded = ["prlimit", f"--data={HARD_BOUND * memory_bytes}", "setpriv", "--pdeathsig", "KILL", "--"]
        self._command = [*within, *bounded, *command]
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(log.parent),
            "GOMEMLIMIT": str(memory_bytes),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        assert not self.is_running
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # ^C is for us
            )

    def check(self) -> None:
        assert self.is_running, f"{self.name} ended: {self.last_words()}"

    def stop(self) -> None:
        """As an impatient service manager does it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It hangs: connections are taken, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """At once: nothing of it is needed any more."""
        if self.is_running:
            self.kill()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-LAST_BYTES:] if self.log.exists() else ""

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            self._process.wait(STOPPED_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
