"""`evenkeel why`: the story of a pod in sentences, with the figures of each decision (E14). It reads the journal, so it
works without a running agent."""

import argparse
import os
import time
from collections.abc import Iterator

from evenkeel.agent.observe.story import Chapter, Story, end_sentence, sentence, stayed_sentence, story_of
from evenkeel.cli.client import add_namespace_flag, add_state_flag
from evenkeel.cli.output import STRUCTURED, print_structured, printable
from evenkeel.errors import EvenkeelError
from evenkeel.journal.store import Journal

USAGE = "POD [-n NS] [--state-dir PATH] [-o json|yaml]"
EXAMPLES = """examples:
  evenkeel why web                 why it was evicted, killed, restarted or spared
  evenkeel why web -o json         all figures, for a program
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help="the pod; also NAMESPACE/NAME")
    add_namespace_flag(parser)
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="print this form and not sentences")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    name = args.pod.removeprefix("pod/")
    key = name if "/" in name else f"{args.namespace}/{name}"
    with Journal.read(os.path.join(args.state_dir, "journal.db")) as journal:
        story = story_of(journal, key)
        if story is None:
            known = sorted({held.pod.key for held in journal.pods()})
            raise EvenkeelError(
                f"the journal in {args.state_dir} has no pod {printable(key)[:300]}",
                hint=f"there are {', '.join(known[:10])}" if known else "name its namespace with -n",
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
        yield f"  {time.strftime('%H:%M:%S', then)}  {sentence(chapter)}"
        for line in _stayed(chapter):
            yield f"            {line}"
    yield end_sentence(story)


def _stayed(chapter: Chapter) -> Iterator[str]:
    if chapter.reason == "Spared" or not chapter.stayed:
        return
    yield "Considered, but not evicted:"
    for other in chapter.stayed:
        yield f"  {stayed_sentence(other, chapter.resource)}"
