"""`evenkeel exec` and its like as a user has them: through a pipe, and at a terminal of the test's own."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kernel.agents import Up, is_alive, processes_of
from tests.kernel.live_tree import raw_content
from tests.kernel.waiting import PATIENCE_SECONDS

MARK = "8642"  # seconds that only our sleepers sleep


def command(agent: Up, *words: str) -> list[str]:
    """The command line; `words` begin with the name of the command."""
    verb, *rest = words
    return [sys.executable, "-m", "evenkeel", verb, "--state-dir", str(agent.state), *rest]


def done(agent: Up, *words: str, said: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
    """Runs a command with `said` as its standard input. Returns its output and its end."""
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if said is None else {"input": said}
    return subprocess.run(
        command(agent, *words), capture_output=True, check=False, timeout=2 * PATIENCE_SECONDS, **given
    )


@contextlib.contextmanager
def begun(agent: Up, *words: str, **streams: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that runs on; it is killed in the end."""
    process = subprocess.Popen(
        command(agent, *words), **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **streams}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Terminal:
    """A command at a terminal: what it shows, and the keys that are typed."""

    def __init__(self, arguments: list[str], columns: int = 80, rows: int = 24) -> None:
        self.shown = b""
        self._has_ended = False
        self.pid, self._side = pty.fork()
        if self.pid == 0:
            _set_size(0, columns, rows)  # before the command can ask for it
            os.execv(arguments[0], arguments)

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the terminal; the kernel sends SIGWINCH."""
        _set_size(self._side, columns, rows)

    def await_size(self, columns: int, rows: int) -> None:
        """Waits until the shell at the other end has this size. A size takes another way than the keys, and may arrive
        later."""
        self.type(
            f"while [ \"$(stty size)\" != '{rows} {columns}' ]; do sleep 0.05; done; echo is''_{rows}\n"
        )
        self.await_shown(f"is_{rows}")

    def type(self, keys: str) -> None:
        os.write(self._side, keys.encode())

    def await_shown(self, text: str) -> str:
        """What was shown up to the text, and is forgotten afterwards."""
        wanted, deadline = text.encode(), time.monotonic() + PATIENCE_SECONDS
        while wanted not in self.shown:
            ready, _, _ = select.select((self._side,), (), (), max(deadline - time.monotonic(), 0))
            chunk = b""
            with contextlib.suppress(OSError):  # EIO: its last process has ended
                chunk = os.read(self._side, 65536) if ready else b""
            assert chunk, f"{text!r} is not in {self.shown[-2000:]!r}"
            self.shown += chunk
        seen, _, self.shown = self.shown.partition(wanted)
        return (seen + wanted).decode()

    def exit_code(self) -> int:
        with contextlib.suppress(OSError):
            while os.read(self._side, 65536):
                pass
        status = os.waitpid(self.pid, 0)[1]
        self._has_ended = True
        return os.waitstatus_to_exitcode(status)

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._side)[3] & termios.ICANON

    def close(self) -> None:
        if not self._has_ended:  # its number may be another's otherwise
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._side)


def _set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextlib.contextmanager
def at_terminal(agent: Up, *words: str, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    terminal = Terminal(command(agent, *words), columns, rows)
    try:
        yield terminal
    finally:
        terminal.close()


def sleepers(agent: Up, name: str = "web", container: str = "main") -> list[int]:
    """The living processes of a container that sleep for us: they execute that by now."""
    found = processes_of(agent.container(name, container))
    words = {pid: (raw_content(Path(f"/proc/{pid}/cmdline")) or b"").split(b"\0") for pid in found}
    return [pid for pid in found if MARK.encode() in words[pid] and is_alive(pid)]


def open_streams(pid: int) -> list[str]:
    """The pipes, sockets, terminals and the like that a process has open, without their numbers. What an agent opens
    when it first needs it is left out: files of cgroups, and events."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kind, _, number = str(path.readlink()).partition(":")
            if kind in ("pipe", "socket") or kind.startswith("/dev/p") or number == "[eventpoll]":
                found.append(kind)
    return sorted(found)
