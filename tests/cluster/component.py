"""One program of the control plane, with a bound on its memory."""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.machines.daemon import Daemon

# After SIGTERM an API server waits a minute for its watchers, which stay connected.
STOPPED_SECONDS = 5.0
# Go maps more than it uses.
HARD_BOUND = 4


class Component(Daemon):
    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, within: Sequence[str], memory_bytes: int
    ) -> None:
        """`within` is a command that executes its arguments, in another namespace. Towards `memory_bytes` Go collects
        its garbage harder; far above them it gets no more memory."""
        super().__init__(name, log, stopped_seconds=STOPPED_SECONDS)
        bounded = ["prlimit", f"--data={HARD_BOUND * memory_bytes}", "setpriv", "--pdeathsig", "KILL", "--"]
        self._command = [*within, *bounded, *command]
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(log.parent),
            "GOMEMLIMIT": str(memory_bytes),
        }

    def start(self) -> None:
        self.spawn(self._command, self._environment, self.log.parent)

    def close(self) -> None:
        """Kills it at once: nothing of it is needed any more."""
        if self.is_running:
            self.kill()
