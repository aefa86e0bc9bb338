"""`evenkeel top`: capacity, requests, limits and use of the node and its pods. Live on a terminal, else a table."""

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evenkeel.cli.arguments import DEFAULT_NAMESPACE, NODE, PODS, add_state_flag, known_kind, named
from evenkeel.cli.bars import signs_for
from evenkeel.cli.client import Client, client_from
from evenkeel.cli.output import STRUCTURED, Paint, paint_for, print_structured, printable
from evenkeel.cli.top_view import RESOURCES, Layout, amount, used_of, view_lines
from evenkeel.errors import EvenkeelError

USAGE = "[pods|node] [NAME…] [-n NS|-A] [--containers] [--once] [--interval SECONDS] [-o json|yaml]"
EXAMPLES = """examples:
  evenkeel top                       the node and all its pods, every second; q or Ctrl-C ends it
  evenkeel top --containers -n shop  with every container, in one namespace
  evenkeel top --once -A             one table, sorted by memory use, of every namespace
  evenkeel top -o json               the whole view, for a program

Without a terminal it prints the table. `evenkeel dashboard` shows the same in a browser.
"""
Json = dict[str, Any]
_HEADS = ("NAME", "CPU", "REQUEST", "LIMIT", "MEMORY", "REQUEST", "LIMIT", "USED")
_RETRY_SECONDS = 0.1  # until the agent has a new view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", nargs="?", metavar="pods|node", default=PODS, help="pods with the node, or the node alone"
    )
    parser.add_argument("pods", nargs="*", metavar="NAME", help="only these pods")
    parser.add_argument("--containers", action="store_true", help="a row for each container")
    parser.add_argument("--once", action="store_true", help="print once, and do not refresh")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="the time between two updates (%(default)g)",
    )
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="the pods of every namespace")
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NS",
        help=f"only the pods of this namespace (default: all when live, {DEFAULT_NAMESPACE} in the table)",
    )
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="the whole view, once, for a program")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    words = [args.kind, *args.pods]
    kind, names = named(words) if "/" in args.kind or known_kind(args.kind) else (PODS, words)
    if kind not in (PODS, NODE):
        raise EvenkeelError("top shows pods and the node")
    client = client_from(args)
    if args.output:
        print_structured(_second_view(client), args.output)
    elif sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not args.once:
        _live(client, args, has_pods=kind == PODS, names=names)
    else:
        view = _second_view(client)
        namespace = "" if args.all_namespaces else args.namespace or DEFAULT_NAMESPACE
        listing = _Listing(view, namespace, names, has_containers=args.containers)
        lines = listing.lines(paint_for()) if kind == PODS else _node_lines(view)
        print("\n".join(lines))
    return 0


def _live(client: Client, args: argparse.Namespace, *, has_pods: bool, names: list[str]) -> None:
    namespace = args.namespace if args.namespace and not args.all_namespaces else ""
    paint, signs = paint_for(), signs_for()
    view = client.get("/view")
    with whole_screen() as screen:
        while True:
            columns, rows = screen.size()
            layout = Layout(columns, rows, paint, signs, has_pods, args.containers, namespace, names)
            screen.draw(view_lines(view, layout))
            if screen.wait(args.interval) in ("q", "Q", "\x1b", "\x04"):
                return
            view = client.get("/view")


def _second_view(client: Client) -> Json:
    """The cpu use is the difference of two views. So this waits for a second view after the first."""
    first: Json = client.get("/view")
    deadline = time.monotonic() + 5
    while True:
        time.sleep(_RETRY_SECONDS)
        view: Json = client.get("/view")
        if view["number"] != first["number"] or time.monotonic() > deadline:
            return view


def _node_lines(view: Json) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("", "USED", "PODS USE", "REQUESTED", "ALLOCATABLE", "RESERVED", "OF", "")]
    for title, name in RESOURCES.items():
        now = view["resources"].get(name)
        if now is None:
            continue
        whole, used = now["capacity"], now.get("used")
        amounts = (used, now.get("usedByPods"), now["requested"], now["allocatable"])
        cells = [amount(name, one) for one in (*amounts, whole - now["allocatable"], whole)]
        rows.append((title, *cells, _percent(used or 0, whole)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


class _Listing:
    """The table of pods or containers, sorted by memory use."""

    def __init__(self, view: Json, namespace: str, names: list[str], *, has_containers: bool) -> None:
        self._view = view
        self._namespace = namespace
        self._names = names
        self._kind = "container" if has_containers else "pod"

    def lines(self, paint: Paint) -> Iterator[str]:
        rows = [self._row(one) for one in self._view["cgroups"] if self._is_listed(one)]
        rows.sort(key=lambda row: (-row[0], row[1][0]))
        cells = [_HEADS, *(row for _, row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADS))]
        for number, row in enumerate(cells):
            *rest, used = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            painted = paint(_colour(used), used.rstrip()) if number else used
            yield "   ".join((*rest, painted)).rstrip()

    def _is_listed(self, cgroup: Json) -> bool:
        if cgroup["kind"] != self._kind or not cgroup.get("figures"):  # it does not run
            return False
        namespace, _, name = cgroup["pod"].partition("/")
        return self._namespace in ("", namespace) and (not self._names or name in self._names)

    def _row(self, cgroup: Json) -> tuple[int, tuple[str, ...]]:
        name = cgroup["pod"] if not self._namespace else cgroup["pod"].partition("/")[2]
        if self._kind == "container":
            name = f"{name}/{cgroup['container']}"
        used = used_of(cgroup)
        working_set = int(used["memory"] or 0)
        requests, limits = cgroup["requests"], cgroup["limits"]
        bound = limits.get("memory") or requests.get("memory") or 0
        cells = (
            printable(name),
            amount("cpu", used["cpu"]),
            amount("cpu", requests.get("cpu") or None),
            amount("cpu", limits.get("cpu") or None),
            amount("memory", working_set),
            amount("memory", requests.get("memory") or None),
            amount("memory", limits.get("memory") or None),
            _percent(working_set, bound),
        )
        return working_set, cells


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole}%" if whole else ""


def _colour(percent: str) -> str:
    text = percent.strip().rstrip("%")
    number = int(text) if text.isdigit() else 0
    return "red" if number >= 90 else "yellow" if number >= 75 else "green"


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of seconds from 0.5 to 3600')
    return seconds


class Screen:
    """The alternate screen of the terminal."""

    def __init__(self, keys: int | None) -> None:
        self._keys = keys  # the descriptor of the keyboard, if there is one

    def draw(self, lines: Sequence[str]) -> None:
        """Writes all lines at once, so that nothing flickers."""
        sys.stdout.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            columns = rows = 0
        return columns or 100, rows or 40  # a serial line does not know its size

    def wait(self, seconds: float) -> str:
        """The key that is pressed within that time, or an empty string."""
        watched = [] if self._keys is None else [self._keys]
        ready, _, _ = select.select(watched, [], [], seconds)
        return os.read(ready[0], 16).decode(errors="replace") if ready else ""


@contextmanager
def whole_screen() -> Iterator[Screen]:
    """Shows the alternate screen without a cursor. Keys are read one by one and are not echoed."""
    keys, before = None, None
    if sys.stdin is not None and sys.stdin.isatty():
        import termios
        import tty

        keys = sys.stdin.fileno()
        before = termios.tcgetattr(keys)
        tty.setcbreak(keys)
    ended = signal.signal(signal.SIGTERM, _end)  # so that the terminal is restored
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
