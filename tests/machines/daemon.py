"""A program that runs beside a test as a process: started, stopped, paused, killed; ended by its number, with a log."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LAST_BYTES = 3000


class Daemon:
    """`stopped_seconds` is what it has to end after SIGTERM; then it is killed."""

    def __init__(self, name: str, log: Path, *, stopped_seconds: float) -> None:
        self.name = name
        self.log = log
        self._stopped_seconds = stopped_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        """Starts the command. It ends with us, and ^C at our terminal is not for it."""
        assert not self.is_running
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def check(self) -> None:
        assert self.is_running, f"{self.name} ended: {self.last_words()}"

    def stop(self) -> None:
        """Ends it with SIGTERM, as a service manager does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it (SIGKILL)."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It hangs: connections are taken, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-LAST_BYTES:] if self.log.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        """Does nothing if it has ended: its PID may belong to another process by then."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._signal(number)
        try:
            self._process.wait(self._stopped_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
