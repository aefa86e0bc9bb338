"""`evenkeel top`: cpu and memory in use, against what was asked for and what is the limit."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, ResourceList
from evenkeel.cli.client import client_from
from evenkeel.cli.kinds import NODE, PODS, named
from evenkeel.cli.output import Paint, paint_for
from evenkeel.cli.pod_amounts import amount_text, typed
from evenkeel.cli.state import add_namespace_flag, add_state_flag
from evenkeel.cli.table import printable
from evenkeel.errors import EvenkeelError
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.policy.words import bytes_text, cores_text

USAGE = "[pods|node] [-n NS|-A] [--containers] [--once] [--interval SECONDS]"
EXAMPLES = """examples:
  evenkeel top                       pods and the node, anew every two seconds, until Ctrl-C
  evenkeel top --containers -A       a line for every container of every namespace
  evenkeel top node --once           the node, once
elsewhere than on a terminal it prints once
"""
Json = dict[str, Any]
_HEADS = ("NAME", "CPU", "REQUEST", "LIMIT", "MEMORY", "REQUEST", "LIMIT", "USED")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", nargs="?", metavar="pods|node", default=PODS, help="pods with the node, or the node alone"
    )
    parser.add_argument("pods", nargs="*", metavar="NAME", help="only these pods")
    parser.add_argument("--containers", action="store_true", help="a line for every container")
    parser.add_argument("--once", action="store_true", help="print once, and do not refresh")
    parser.add_argument(
        "--interval", type=_interval, default=2.0, metavar="SECONDS", help="between two looks (%(default)g)"
    )
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="the pods of every namespace")
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    kind, names = named([args.kind, *args.pods])
    if kind not in (PODS, NODE):
        raise EvenkeelError("top shows pods and the node")
    client = client_from(args)
    refreshes = sys.stdout.isatty() and not args.once
    before = client.get("/usage")
    time.sleep(min(args.interval, 1.0))
    while True:
        now = client.get("/usage")
        lines = _node_lines(now, before)
        if kind == PODS:
            namespace = "" if args.all_namespaces else args.namespace
            pods = [pod for pod in client.pods(namespace) if not names or pod["metadata"]["name"] in names]
            listed = _Listing(now, before, has_containers=args.containers, has_namespace=args.all_namespaces)
            lines = (
                [*lines, "", *listed.lines(pods, paint_for())]
                if refreshes
                else [*listed.lines(pods, paint_for())]
            )
        if not refreshes:
            print("\n".join(lines))
            return 0
        _refresh(lines)
        before = now
        time.sleep(args.interval)


def _refresh(lines: list[str]) -> None:
    """The screen anew, in one write, no longer than it is."""
    import os

    height = os.get_terminal_size(sys.stdout.fileno()).lines
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"… and {len(lines) - height + 2} more"]
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()


def _node_lines(now: Json, before: Json) -> list[str]:
    cores = now["capacityMillicpu"]
    pods_now, pods_before = now.get("pods"), before.get("pods")
    millicpu = _millicpu(pods_now, pods_before, now["at"] - before["at"])
    whole, free = now["capacityBytes"], now["availableBytes"]
    rows = [("", "USED", "OF", "")]
    if pods_now is not None:
        rows.append(("pods cpu", f"{millicpu}m", cores_text(cores), _percent(millicpu, cores)))
        working_set = pods_now["memoryWorkingSetBytes"]
        rows.append(("pods memory", _short(working_set), _short(whole), _percent(working_set, whole)))
    if free <= whole:  # an agent that was given a part of the machine has more free than its own
        rows.append(("node memory", _short(whole - free), _short(whole), _percent(whole - free, whole)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


class _Listing:
    def __init__(self, now: Json, before: Json, *, has_containers: bool, has_namespace: bool) -> None:
        self._now, self._before = (
            {
                (used["pod"], used.get("container", "")): used["statistics"]
                for used in usage.get("containers", ())
            }
            for usage in (now, before)
        )
        self._seconds = now["at"] - before["at"]
        self._has_containers = has_containers
        self._has_namespace = has_namespace

    def lines(self, pods: list[Json], paint: Paint) -> Iterator[str]:
        rows = [row for pod in pods for row in self._rows(typed(pod))]
        # Who uses most comes first, as in every top.
        rows.sort(key=lambda row: (-row[0], row[1][0]))
        cells = [_HEADS, *(row for _, row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADS))]
        for number, row in enumerate(cells):
            *rest, used = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            painted = paint(_colour(used), used.rstrip()) if number else used
            yield "   ".join((*rest, painted)).rstrip()

    def _rows(self, pod: Pod) -> Iterator[tuple[int, tuple[str, ...]]]:
        name = pod.key if self._has_namespace else pod.metadata.name
        if not self._has_containers:
            yield from self._row(name, (pod.key, ""), pod_requests(pod), pod_limits(pod))
            return
        for container in pod.spec.every_container:
            asked = container.resources
            yield from self._row(
                f"{name}/{container.name}", (pod.key, container.name), asked.requests, asked.limits
            )

    def _row(
        self, name: str, key: tuple[str, str], requests: ResourceList, limits: ResourceList
    ) -> Iterator[tuple[int, tuple[str, ...]]]:
        used = self._now.get(key)
        if used is None:  # it does not run
            return
        millicpu = _millicpu(used, self._before.get(key), self._seconds)
        working_set = used["memoryWorkingSetBytes"]
        bound = limits.get(MEMORY) or requests.get(MEMORY)
        cells = (
            printable(name),
            f"{millicpu}m",
            amount_text(CPU, requests.get(CPU)),
            amount_text(CPU, limits.get(CPU)),
            _short(working_set),
            amount_text(MEMORY, requests.get(MEMORY)),
            amount_text(MEMORY, limits.get(MEMORY)),
            _percent(working_set, bound.value) if bound else "",
        )
        yield working_set, cells


def _millicpu(now: Mapping[str, int] | None, before: Mapping[str, int] | None, seconds: float) -> int:
    """From two readings of the same counter; one that began between them began at 0."""
    if now is None or seconds <= 0:
        return 0
    spent = now["cpuUsageUs"] - (before["cpuUsageUs"] if before else 0)
    return max(round(spent / seconds / 1000), 0)


def _short(amount: int) -> str:
    return bytes_text(amount >> 20 << 20) if amount >= 1 << 20 else bytes_text(amount)


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
