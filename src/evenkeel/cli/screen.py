"""A terminal that one picture after the other is drawn on, and that is as it was before when that is over."""

import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Screen:
    def __init__(self, keys: int | None) -> None:
        self._keys = keys  # where they come from, if anybody can press one

    def draw(self, lines: Sequence[str]) -> None:
        """In one write, so that nothing flickers."""
        sys.stdout.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns = rows = 0
        return columns or 100, rows or 40  # a serial line does not say

    def wait(self, seconds: float) -> str:
        """The key that was pressed within that time; else nothing."""
        watched = [] if self._keys is None else [self._keys]
        ready, _, _ = select.select(watched, [], [], seconds)
        return os.read(ready[0], 16).decode(errors="replace") if ready else ""


@contextmanager
def whole_screen() -> Iterator[Screen]:
    """The terminal's other screen, without cursor; keys come one by one and are not shown."""
    keys, before = None, None
    if sys.stdin is not None and sys.stdin.isatty():
        import termios
        import tty

        keys = sys.stdin.fileno()
        before = termios.tcgetattr(keys)
        tty.setcbreak(keys)
    ended = signal.signal(signal.SIGTERM, _end)  # or it would end without giving the terminal back
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield Screen(keys)
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, ended)


def _end(number: int, frame: object) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)
