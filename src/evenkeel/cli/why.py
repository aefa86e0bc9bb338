"""`evenkeel why`: what became of a pod, in sentences and with the figures of each moment (E14). Reads the journal, so
that it works without a running agent, too."""

import argparse
import os
import time
from collections.abc import Iterator

from evenkeel.agent.journal import Journal
from evenkeel.agent.story import Chapter, Other, Story, story_of
from evenkeel.cli.output import STRUCTURED, print_structured
from evenkeel.cli.state import add_namespace_flag, add_state_flag
from evenkeel.cli.table import printable
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.usage import Resource

USAGE = "POD [-n NS] [--state-dir PATH] [-o json|yaml]"
EXAMPLES = """examples:
  evenkeel why web                 why it was evicted, killed, restarted, or left alone
  evenkeel why web -o json         the same with all figures, for a program
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help="whose story")
    add_namespace_flag(parser)
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="else sentences")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    name = args.pod.removeprefix("pod/")
    key = name if "/" in name else f"{args.namespace}/{name}"
    with Journal.read(os.path.join(args.state_dir, "journal.db")) as journal:
        story = story_of(journal, key)
        if story is None:
            known = sorted({held.pod.key for held in journal.pods()})
            raise EvenkeelError(
                f"the journal in {args.state_dir} has never heard of a pod {printable(key)[:300]}",
                hint=f"there are {', '.join(known[:10])}" if known else "-n names its namespace",
            )
    if args.output:
        print_structured(story, args.output)
    else:
        for line in _lines(story):
            print(printable(line))
    return 0


def _lines(story: Story) -> Iterator[str]:
    yield story.pod
    day = ""
    for chapter in story.chapters:
        then = time.localtime(chapter.at)
        today = time.strftime("%Y-%m-%d", then)
        if today != day:
            day = today
            yield f"{day}:"
        yield f"  {time.strftime('%H:%M:%S', then)}  {_sentence(chapter)}"
        for line in _stayed(chapter):
            yield f"            {line}"
    yield _end(story)


def _sentence(chapter: Chapter) -> str:
    text = chapter.message or chapter.reason
    if chapter.reason not in _PLAIN and chapter.reason.lower() not in text.lower():
        text = f"{chapter.reason}: {text}"
    if text.partition(" ")[0].isalpha():  # names and signals are written as they are
        text = text[:1].upper() + text[1:]
    if chapter.times > 1:
        text = f"{text.rstrip('.')}; {chapter.times} times until then"
    return text if text.endswith((".", "!", "?")) else f"{text}."


_PLAIN = ("Started", "Killing", "Spared", "Evicted", "BackOff", "Returning")  # their messages say it all


def _stayed(chapter: Chapter) -> Iterator[str]:
    if chapter.reason == "Spared" or not chapter.stayed:
        return
    yield "Considered, and left alone:"
    for other in chapter.stayed:
        yield f"  {_other(other, chapter.resource)}"


def _other(other: Other, resource: str) -> str:
    seen = other.pod
    unit = Resource(resource) if resource else Resource.MEMORY
    used = "unknown" if seen.usage is None else readable(seen.usage, unit)
    request = f" of its request of {readable(seen.request, unit)}" if seen.request else ""
    return f"{seen.pod} ({seen.qos_class}, priority {seen.priority}), using {used}{request}, {other.why}."


def _end(story: Story) -> str:
    if not story.is_held:
        return "It is gone; nobody asks for it any more."
    if story.reason:
        return f"It is {story.phase} now: {story.reason}."
    return f"It is {story.phase} now."
