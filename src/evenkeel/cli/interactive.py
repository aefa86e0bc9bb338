"""A session at the user's own streams, for `evenkeel exec`, `attach` and `run -it`: raw mode, size, exit code."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from evenkeel.cli.client import Client
from evenkeel.cli.output import printable
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.sessions import SessionEnd

Json = dict[str, Any]
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_USUAL_SIZE = os.terminal_size((80, 24))
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"  # an annotation


def add_stream_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--stdin", action="store_true", help="send standard input")
    parser.add_argument("-t", "--tty", action="store_true", help="with a terminal, as for a shell")


def add_container_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c",
        "--container",
        metavar="CONTAINER",
        default="",
        help="the container (default: the annotated one, or the first)",
    )


def default_container(pod: Json) -> str:
    """The container that the annotation of the pod names; empty without one."""
    return str((pod.get("metadata", {}).get("annotations") or {}).get(DEFAULT_CONTAINER, ""))


def container_of(pod: Json, name: str) -> Json:
    """The container of that name; without a name the annotated one, or the first. Empty if there is none."""
    spec = pod.get("spec", {})
    every = [
        one
        for field in ("containers", "initContainers", "ephemeralContainers")
        for one in spec.get(field, ())
    ]
    wanted = name or default_container(pod) or every[0]["name"]
    return next((one for one in every if one["name"] == wanted), {})


def has_terminal(*, is_wanted: bool) -> bool:
    """Whether the session gets a terminal: it is wanted, and our standard input is one."""
    if is_wanted and not os.isatty(_STDIN):
        print("evenkeel: -t has no effect: standard input is not a terminal", file=sys.stderr)
        return False
    return is_wanted


def interact(
    client: Client,
    path: str,
    parameters: list[tuple[str, str]],
    *,
    has_stdin: bool,
    is_terminal: bool,
    redraws: bool = False,
) -> SessionEnd:
    """Opens the session and relays until its end. With `redraws`, a program that already uses the terminal is made to
    draw its screen again. Raises EvenkeelError if it cannot be opened or breaks off."""
    from evenkeel.cli.remote import Remote, Sinks, relay, write_all
    from evenkeel.server.channels import RESIZE, STDERR, STDOUT, size_message

    flags = {"stdin": has_stdin, "stdout": True, "stderr": not is_terminal, "tty": is_terminal}
    remote = Remote(
        client, path, [*parameters, *((name, str(value).lower()) for name, value in flags.items())]
    )
    sinks = Sinks(
        {
            STDOUT: lambda data: write_all(_STDOUT, data),
            STDERR: lambda data: write_all(_STDERR, data),
        }
    )
    source = _STDIN if has_stdin else -1
    try:
        if not is_terminal:
            return relay(remote, source, sinks)
        with raw_mode():
            if redraws:  # as kubectl does it: the size changes
                columns, rows = window_size()
                remote.send(RESIZE, size_message(columns + 1, rows + 1))
            return relay(remote, source, sinks, window_size)
    finally:
        remote.close()


def exit_code(end: SessionEnd) -> int:
    """The exit code of the command. Prints the same sentence as kubectl to standard error."""
    if end.exit_code:
        hint = f"; {end.hint}" if end.hint else ""
        print(printable(f"evenkeel: {end.problem}{hint}"), file=sys.stderr)
    return end.exit_code


def window_size() -> tuple[int, int]:
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            columns, rows = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if columns and rows:
            return columns, rows
    return _USUAL_SIZE.columns, _USUAL_SIZE.lines


@contextmanager
def raw_mode() -> Iterator[None]:
    """Every key goes to the container, Ctrl-C too. The terminal is as before afterwards, also after a signal."""
    import termios
    import tty

    try:
        before = termios.tcgetattr(_STDIN)
    except termios.error as error:
        raise EvenkeelError(f"the terminal cannot be used: {error}") from None
    handlers = {number: signal.signal(number, _end) for number in _ENDING_SIGNALS}
    tty.setraw(_STDIN, termios.TCSADRAIN)  # keys that were typed meanwhile are kept
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    sys.exit(128 + number)
