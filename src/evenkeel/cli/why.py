"""`evenkeel why`: what happened to a pod, in sentences, with the figures of each decision (E14).

It reads the journal, so it works without a running agent.
"""

import argparse
import os
import time
from collections.abc import Iterator

from evenkeel.agent.observe.pod_history import (
    HistoryEntry,
    PodHistory,
    end_sentence,
    pod_history,
    sentence,
    stayed_sentence,
)
from evenkeel.cli.arguments import PODS, add_namespace_flag, add_state_flag, known_kind
from evenkeel.cli.output import STRUCTURED, print_structured, printable
from evenkeel.errors import EvenkeelError
from evenkeel.journal.store import Journal

USAGE = "POD [-n NS] [--state-dir PATH] [-o json|yaml]"
EXAMPLES = """examples:
  evenkeel why web                 why it was evicted, killed, restarted or spared
  evenkeel why web -o json         all figures, for a program
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help="the pod; also pod/NAME, or NAMESPACE/NAME")
    add_namespace_flag(parser)
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="print this form and not sentences")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    kind, _, rest = args.pod.partition("/")
    name = rest if rest and known_kind(kind) == PODS else args.pod
    key = name if "/" in name else f"{args.namespace}/{name}"
    with Journal.read(os.path.join(args.state_dir, "journal.db")) as journal:
        history = pod_history(journal, key)
        if history is None:
            known = sorted({held.pod.key for held in journal.pods()})
            raise EvenkeelError(
                f"the journal in {args.state_dir} has no pod {printable(key)[:300]}",
                hint=f"there are {', '.join(known[:10])}" if known else "name its namespace with -n",
            )
    if args.output:
        print_structured(history, args.output)
    else:
        for line in _lines(history):
            print(printable(line))
    return 0


def _lines(history: PodHistory) -> Iterator[str]:
    yield history.pod
    day = ""
    for entry in history.chapters:
        then = time.localtime(entry.at)
        today = time.strftime("%Y-%m-%d", then)
        if today != day:
            day = today
            yield f"{day}:"
        yield f"  {time.strftime('%H:%M:%S', then)}  {sentence(entry)}"
        for line in _stayed(entry):
            yield f"            {line}"
    yield end_sentence(history)


def _stayed(entry: HistoryEntry) -> Iterator[str]:
    if entry.reason == "Spared" or not entry.stayed:
        return
    yield "Considered, but not evicted:"
    for other in entry.stayed:
        yield f"  {stayed_sentence(other, entry.resource)}"
