"""The guard: a tiny process that outlives the watch. It releases the pods that the watch left frozen or throttled.

    python -I -S -c … DESCRIPTOR

The watch writes to the guard through a pipe. Each line names a cgroup file, and the value that ends the freeze or the
throttling. Only the watch has the other end of the pipe. While the watch runs, the guard only reads. When the watch
ends for any reason, the kernel closes the pipe. The guard then writes the remaining values, and ends too.

The guard runs all the time, so it must cost almost nothing. It has one thread and almost no imports: `typing` alone
would take a MiB, and `signal` 0.8 MiB, since its numbers are enums.
"""

import os
import sys

TYPE_CHECKING = False  # as typing has it
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # the same functions, with plain numbers

NAME = "evenkeel-guard"  # the name in top and /proc
MOST_BYTES = 4096  # PIPE_BUF: a write of up to this size is atomic

_HOLD, _FREE, _BETWEEN, _END = b"+", b"-", b"\0", b"\n"
_READ_BYTES = 1 << 16

Held = dict[bytes, bytes]  # by file: the value to write to it


def hold_line(file: str, lets_go: str) -> bytes:
    """Asks the guard to write `lets_go` to `file` when the watch ends, unless `free_line` is sent before."""
    return _line(_HOLD, os.fsencode(file), lets_go.encode())


def free_line(file: str) -> bytes:
    return _line(_FREE, os.fsencode(file))


def _line(word: bytes, *fields: bytes) -> bytes:
    line = word + _BETWEEN.join(fields)
    if _END in line or line.count(_BETWEEN) >= len(fields) or len(line) >= MOST_BYTES:
        return b""  # no file of a cgroup has such a name
    return line + _END


def hear(said: bytes, held: Held) -> bytes:
    """Handles every complete line. Returns the incomplete rest."""
    *lines, rest = said.split(_END)
    for line in lines:
        file, _, lets_go = line[1:].partition(_BETWEEN)
        if line.startswith(_HOLD):
            held[file] = lets_go
        else:
            held.pop(file, None)
    return rest


def let_go(held: Held) -> None:
    """Writes the value of each file. A cgroup that no longer exists is skipped. A new watch may have frozen the same
    cgroup at this moment. Then that pod runs for up to a second longer, as it would without a watch."""
    for file, value in held.items():
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            os.write(descriptor, value)
        except OSError:
            pass
        finally:
            os.close(descriptor)


def main(descriptor: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the guard must not end before the watch
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(NAME.encode())
    except OSError:
        pass  # the guard works without a name
    held: Held = {}
    rest = b""
    while said := os.read(descriptor, _READ_BYTES):
        rest = hear(rest + said, held)
    let_go(held)


def entry() -> None:
    main(int(sys.argv[1]))
    os._exit(0)
