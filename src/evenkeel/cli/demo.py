"""`evenkeel demo`: the promises shown on this machine, in small trees of their own, each with a verdict (A25)."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from evenkeel.cli.output import paint_for
from evenkeel.demo.demonstrations import EMPTIED, SQUEEZED, SURVIVED
from evenkeel.demo.stage import HOST_IMAGE, Stage, Story, Verdict
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.host.machine import parse_capabilities
from evenkeel.policy.units import bytes_text, cores_text

STORIES = {story.name: story for story in (SURVIVED, EMPTIED, SQUEEZED)}
TIME_LIMIT_SECONDS = 30.0

USAGE = f"[{'|'.join(STORIES)}]… [--time-limit SECONDS] [--runtime-endpoint SOCKET --image IMAGE]"
EXAMPLES = """examples:
  evenkeel demo                 all three, one after the other
  evenkeel demo guaranteed      Guaranteed pods survive a barrage of BestEffort ones
  evenkeel demo besteffort      a node full of BestEffort pods is emptied by arriving Guaranteed ones
  evenkeel demo cpu             who requests no CPU has all of it alone, and a sliver beside one who does
  evenkeel demo --runtime-endpoint unix:///run/containerd/containerd.sock --image registry.example/busybox:1.36
                                the same with containers, from an image that has a shell and dd in it

Each runs pods in a cgroup tree of its own with a limit of its own: this machine's memory is never filled, and its other
pods are not touched. Afterwards everything is removed. Exit code 0: every promise held.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("demos", metavar="DEMO", nargs="*", help=f"{', '.join(STORIES)}; default: all")
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        default=TIME_LIMIT_SECONDS,
        help="for each; a slow machine may need more (%(default)g)",
    )
    parser.add_argument(
        "--runtime-endpoint",
        metavar="SOCKET",
        default="",
        help="of a container runtime; without it pods are plain processes",
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        default="",
        help="that the containers are made from; with sh, dd, sleep, timeout and taskset in it, as busybox has them",
    )


def run(args: argparse.Namespace) -> int:
    for name in args.demos:
        if name not in STORIES:
            raise EvenkeelError(f"there is no demonstration {name!r}", hint=f"there are {', '.join(STORIES)}")
    if os.geteuid() != 0:
        raise EvenkeelError(
            "a demonstration makes cgroups of its own at the top, which takes root",
            hint=f"sudo {sys.argv[0]} demo; `evenkeel explain` shows what would happen, as any user",
        )
    if bool(args.runtime_endpoint) != bool(args.image):
        given, missing = (
            ("--image", "--runtime-endpoint") if args.image else ("--runtime-endpoint", "--image")
        )
        raise EvenkeelError(
            f"{given} is given and {missing} is not",
            hint="containers need both: a runtime's socket, and an image with a shell, such as busybox",
        )
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.ERROR, stream=sys.stderr)
    stories = [STORIES[name] for name in args.demos or STORIES]

    def make_stage(story: Story) -> Stage:
        return Stage(story.capacity, args.time_limit, args.runtime_endpoint, args.image or HOST_IMAGE)

    return asyncio.run(_tell(stories, make_stage))


async def _tell(stories: Sequence[Story], make_stage: Callable[[Story], Stage]) -> int:
    """Ctrl-C ends the story, and never the cleaning up after it."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _say_of_scores()
    is_every_one_held = True
    for story in stories:
        verdict = await _tell_one(story, make_stage, stop)
        if verdict is None:
            print("stopped; everything is removed", flush=True)
            return 130
        is_every_one_held &= verdict.is_held
    return 0 if is_every_one_held else 1


async def _tell_one(
    story: Story, make_stage: Callable[[Story], Stage], stop: asyncio.Event
) -> Verdict | None:
    """None if it was stopped."""
    paint = paint_for()
    size = (
        f"{bytes_text(story.capacity.memory_bytes)} of memory and {cores_text(story.capacity.millicpu)} cpu"
    )
    print(f"{paint('bold', f'{story.name}: {story.promise}')}\non a node of {size}", flush=True)
    playing = asyncio.create_task(_play(story, make_stage))
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


async def _play(story: Story, make_stage: Callable[[Story], Stage]) -> Verdict:
    async with make_stage(story) as stage:
        return await story.tell(stage)


def _say_of_scores() -> None:
    """What is weaker here than it should be, and why the promise holds nevertheless."""
    if "CAP_SYS_RESOURCE" not in parse_capabilities(read_text("/proc/self/status")).effective:
        print(
            "no CAP_SYS_RESOURCE here: Guaranteed containers and the agent have OOM score 0 in place of -999;\n"
            "BestEffort ones have 1000, and go first all the same",
            flush=True,
        )
