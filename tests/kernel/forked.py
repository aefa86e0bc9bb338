"""`evenkeel` as a process forked from one that has imported it, for emulated machines: there imports take most of a
command's time. It has what `tests/kernel/agents.py` needs of a `subprocess.Popen`. On the host it is started anew."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from evenkeel.cli.main import entry

_PRELOADED = [
    "evenkeel.cli.client",
    "evenkeel.cli.replay",
    "evenkeel.cli.up",
    "evenkeel.cli.why",
    "evenkeel.runtime.process.process_runtime",
    __name__,
]


class Forked:
    """Runs `evenkeel` with `arguments`; what it says is appended to `output`, and to `errors` if they are apart."""

    def __init__(self, arguments: Sequence[str], output: Path, errors: Path | None = None) -> None:
        self._arguments = arguments
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        given = (arguments, output, errors or output, dict(os.environ), str(Path.cwd()))
        self._process = context.Process(target=_run, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(["evenkeel", *self._arguments], timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _run(
    arguments: Sequence[str], output: Path, errors: Path, variables: Mapping[str, str], directory: str
) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(directory)
    sys.argv = ["evenkeel", *arguments]
    entry()
