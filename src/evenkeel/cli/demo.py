"""`evenkeel demo`: shows three promises on this machine, each in a small cgroup tree of its own (A25)."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from evenkeel.cli.output import paint_for
from evenkeel.cli.up_view import view_of
from evenkeel.demo.demonstrations import EMPTIED, SQUEEZED, SURVIVED
from evenkeel.demo.stage import HOST_IMAGE, Demonstration, Stage, Verdict
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.host.machine import parse_capabilities
from evenkeel.policy.amounts import bytes_text, cores_text

DEMONSTRATIONS = {demonstration.name: demonstration for demonstration in (SURVIVED, EMPTIED, SQUEEZED)}
TIME_LIMIT_SECONDS = 30.0

USAGE = f"[{'|'.join(DEMONSTRATIONS)}]… [--time-limit SECONDS] [--runtime-endpoint SOCKET --image IMAGE]"
EXAMPLES = """examples:
  evenkeel demo                 all three, one after the other
  evenkeel demo guaranteed      Guaranteed pods survive a barrage of BestEffort ones
  evenkeel demo besteffort      a node full of BestEffort pods is emptied by arriving Guaranteed ones
  evenkeel demo cpu             a pod without a CPU request has all of it alone, and little beside a pod with one
  evenkeel demo --runtime-endpoint unix:///run/containerd/containerd.sock --image registry.example/busybox:1.36
                                the same with containers; the image must have a shell and dd

Each demonstration runs pods in a cgroup tree with a limit of its own. It never fills this machine's memory, and touches
no other pod. Afterwards everything is removed. Exit code 0: every promise held.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("demos", metavar="DEMO", nargs="*", help=f"{', '.join(DEMONSTRATIONS)}; default: all")
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        default=TIME_LIMIT_SECONDS,
        help="the time for each; a slow machine may need more (%(default)g)",
    )
    parser.add_argument(
        "--runtime-endpoint",
        metavar="SOCKET",
        default="",
        help="the socket of a container runtime; without it pods are plain processes",
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        default="",
        help="the image of the containers; it must have sh, dd, sleep, timeout and taskset, as busybox does",
    )


def run(args: argparse.Namespace) -> int:
    for name in args.demos:
        if name not in DEMONSTRATIONS:
            raise EvenkeelError(
                f"there is no demonstration {name!r}", hint=f"there are {', '.join(DEMONSTRATIONS)}"
            )
    if os.geteuid() != 0:
        raise EvenkeelError(
            "demo creates cgroups, which takes root",
            hint=f"sudo {sys.argv[0]} demo; `evenkeel explain` shows what would happen, without root",
        )
    if bool(args.runtime_endpoint) != bool(args.image):
        given, missing = (
            ("--image", "--runtime-endpoint") if args.image else ("--runtime-endpoint", "--image")
        )
        raise EvenkeelError(
            f"{given} is given and {missing} is not",
            hint="containers need both: the socket of a runtime, and an image with a shell, such as busybox",
        )
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.ERROR, stream=sys.stderr)
    demonstrations = [DEMONSTRATIONS[name] for name in args.demos or DEMONSTRATIONS]

    def make_stage(demonstration: Demonstration) -> Stage:
        return Stage(
            demonstration.capacity, args.time_limit, view_of, args.runtime_endpoint, args.image or HOST_IMAGE
        )

    return asyncio.run(_show(demonstrations, make_stage))


async def _show(demonstrations: Sequence[Demonstration], make_stage: Callable[[Demonstration], Stage]) -> int:
    """Ctrl-C ends a demonstration, but not the removal of its pods and cgroups."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _print_score_note()
    is_every_one_held = True
    for demonstration in demonstrations:
        verdict = await _show_one(demonstration, make_stage, stop)
        if verdict is None:
            print("stopped; everything is removed", flush=True)
            return 130
        is_every_one_held &= verdict.is_held
    return 0 if is_every_one_held else 1


async def _show_one(
    demonstration: Demonstration, make_stage: Callable[[Demonstration], Stage], stop: asyncio.Event
) -> Verdict | None:
    """None if Ctrl-C stopped it."""
    paint = paint_for()
    capacity = demonstration.capacity
    size = f"{bytes_text(capacity.memory_bytes)} of memory and {cores_text(capacity.millicpu)} cpu"
    print(
        f"{paint('bold', f'{demonstration.name}: {demonstration.promise}')}\non a node of {size}", flush=True
    )
    playing = asyncio.create_task(_play(demonstration, make_stage))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not playing.done():
        playing.cancel()
        await asyncio.wait({playing})
        if playing.cancelled():
            return None
    verdict = playing.result()
    colour, word = ("green", "held") if verdict.is_held else ("red", "broken")
    print(f"{paint(colour, word)}: {verdict.figures}\n", flush=True)
    return verdict


async def _play(demonstration: Demonstration, make_stage: Callable[[Demonstration], Stage]) -> Verdict:
    async with make_stage(demonstration) as stage:
        return await demonstration.run(stage)


def _print_score_note() -> None:
    """Without CAP_SYS_RESOURCE, OOM scores are weaker. The promise holds nevertheless."""
    if "CAP_SYS_RESOURCE" not in parse_capabilities(read_text("/proc/self/status")).effective:
        print(
            "no CAP_SYS_RESOURCE here: Guaranteed containers and the agent have OOM score 0 and not -999;\n"
            "BestEffort ones have 1000, and are killed first all the same",
            flush=True,
        )
