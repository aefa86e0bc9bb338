"""The guard: a tiny process that outlives the agent, and then lets go of whoever the agent had a hold of.

    python -I -S -c … DESCRIPTOR

The agent tells it over a pipe, whose other end it alone has, which files hold somebody and what lets go of them. While
the agent lives nothing else happens. When it has ended, however it did, the kernel closes the pipe; then the guard
writes what is still held, and ends too. It has one thread and next to no imports (`typing` alone would be a MiB): it is
there all the time, and must not cost anything.
"""

import os
import signal
import sys

NAME = "evenkeel-guard"  # as top and /proc show it
MOST_BYTES = 4096  # PIPE_BUF: what is no longer than that is in the pipe whole, or not at all

_HOLD, _FREE, _BETWEEN, _END = b"+", b"-", b"\0", b"\n"
_READ_BYTES = 1 << 16

Held = dict[bytes, bytes]  # by the file: what lets go


def hold_line(file: str, lets_go: str) -> bytes:
    """From now on, until it is free: `lets_go` is to be written to `file`."""
    return _line(_HOLD, os.fsencode(file), lets_go.encode())


def free_line(file: str) -> bytes:
    return _line(_FREE, os.fsencode(file))


def _line(word: bytes, *fields: bytes) -> bytes:
    line = word + _BETWEEN.join(fields)
    if _END in line or line.count(_BETWEEN) >= len(fields) or len(line) >= MOST_BYTES:
        return b""  # no file of a cgroup is called that
    return line + _END


def hear(said: bytes, held: Held) -> bytes:
    """Takes up every whole line; returns what there is of the next."""
    *lines, rest = said.split(_END)
    for line in lines:
        file, _, lets_go = line[1:].partition(_BETWEEN)
        if line.startswith(_HOLD):
            held[file] = lets_go
        else:
            held.pop(file, None)
    return rest


def let_go(held: Held) -> None:
    """A cgroup that is gone holds nobody. If a new agent is there by now, and has got a hold of the same one in this
    moment, that one runs for up to a second longer: which is what it would have done without an agent."""
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
        signal.signal(number, signal.SIG_IGN)  # it ends with the agent, and not before
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(NAME.encode())
    except OSError:
        pass  # it works without a name
    held: Held = {}
    rest = b""
    while said := os.read(descriptor, _READ_BYTES):
        rest = hear(rest + said, held)
    let_go(held)


def entry() -> None:
    main(int(sys.argv[1]))
    os._exit(0)
