"""`evenkeel replay`: decides again what the journal says was decided, from what it was decided on (E14).

With the same configuration the same must come out; a difference is an error. With other thresholds or another policy
it is a "what if".
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from evenkeel.cli.common_flags import add_state_flag
from evenkeel.cli.config_flags import add_config_flags
from evenkeel.cli.output import STRUCTURED, print_structured, printable
from evenkeel.cli.what_if import WhatIf
from evenkeel.journal.store import Journal
from evenkeel.policy.eviction.decide import State, decide
from evenkeel.pressure.decision_records import Again, eviction_said, made_again

USAGE = "[JOURNAL] [--all] [-o json|yaml] [--eviction-hard … --eviction-order … --profile … flags]"
EXAMPLES = """examples:
  evenkeel replay                                      whether everything would be decided again as it was
  evenkeel replay /var/lib/evenkeel/journal.db --all   and what that was
  evenkeel replay --eviction-hard 'memory.available<1Gi'      who would have gone then
  evenkeel replay --eviction-order priority            by priority instead of by class
"""


class Replayed(NamedTuple):
    """One decision, as it was and as it would be. `differs` names what is not the same."""

    number: int
    at: float
    kind: str
    recorded: Mapping[str, object]
    now: Mapping[str, object]
    differs: tuple[str, ...] = ()
    unreadable: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "journal",
        metavar="JOURNAL",
        nargs="?",
        help="a journal, or a state directory with one; default: --state-dir",
    )
    parser.add_argument("--all", action="store_true", help="show every decision, not only those that differ")
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="else sentences")
    add_state_flag(parser)
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    path = args.journal or args.state_dir
    if os.path.isdir(path):
        path = os.path.join(path, "journal.db")
    what_if = WhatIf(args)
    with Journal.read(path) as journal:
        known = len(journal.notes)
        steps = list(_replay(journal, what_if))
        lost = len(journal.notes) - known  # decisions of which not even the record is whole
        for note in journal.notes:
            print(f"warning: {printable(note)}", file=sys.stderr)
    if args.output:
        print_structured({"isWhatIf": what_if.changes_anything, "decisions": steps}, args.output)
    else:
        _print(steps, lost, what_if, shows_all=args.all)
    is_bad = lost or any(step.unreadable or (step.differs and not what_if.changes_anything) for step in steps)
    return int(bool(is_bad))


def _replay(journal: Journal, what_if: WhatIf) -> Iterator[Replayed]:
    # With other thresholds, what was known before a step is what the steps before it would have left. Each of those
    # who watch has a state of its own.
    states: dict[object, State] = {}
    for again in made_again(journal):
        now = again.now
        if again.step is not None and what_if.changes_anything:
            step = again.step
            source = again.was.get("source", "memory")
            state = states.get(source, State()) if what_if.changes_thresholds else step.state
            thresholds, settings = what_if.thresholds(step.thresholds), what_if.settings(step.settings)
            states[source], decision = decide(state, step.snapshot, thresholds, settings)
            now = eviction_said(decision)
        number, at, kind, _, _ = again.record
        yield Replayed(number, at, kind, again.was, now, _differs(again, now, what_if), again.unreadable)


def _differs(again: Again, now: Mapping[str, object], what_if: WhatIf) -> tuple[str, ...]:
    if not what_if.changes_anything:
        return again.differs
    # Words and thresholds differ as they must; what counts is who goes.
    return () if again.unreadable or _pods(again.was) == _pods(now) else ("evictions",)


def _print(steps: list[Replayed], lost: int, what_if: WhatIf, *, shows_all: bool) -> None:
    for step in steps:
        if not (shows_all or step.differs or step.unreadable):
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(step.at))
        print(printable(f"decision {step.number}, {when}: {_words(step, what_if)}"))
    differing = sum(bool(step.differs) for step in steps)
    unreadable = lost + sum(bool(step.unreadable) for step in steps)
    decisions = len(steps) + lost
    count = f"{decisions} decisions" if decisions != 1 else "1 decision"
    if what_if.changes_anything:
        print(f"{count}; with these settings {differing or 'none'} would have been another.")
        if what_if.changes_thresholds and steps:
            print(
                "Looked at are the moments that the agent wrote down; between them others may have been crossed."
            )
    elif differing or unreadable:
        print(f"{count}; {differing} decided differently now, {unreadable} not readable.")
    else:
        print(f"{count}, each decided again as it was.")


def _words(step: Replayed, what_if: WhatIf) -> str:
    if step.unreadable:
        return f"cannot be read: {step.unreadable}"
    was = _doing(step.recorded)
    if not step.differs:
        return was
    if what_if.changes_anything:
        return f"{was}; with these settings: {_doing(step.now)}"
    parts = "; ".join(
        f"{name} was {step.recorded.get(name)!r} and is {step.now.get(name)!r}" for name in step.differs
    )
    return f"DIFFERENT: {parts}"


def _doing(said_: Mapping[str, object]) -> str:
    if "stall" in said_:
        return (
            f"a stall at memory.high; {said_.get('done') or 'it is told'}" if said_["stall"] else "no stall"
        )
    pods = _pods(said_)
    short = said_.get("short")
    if isinstance(short, list):
        pods_short = ", ".join(str(one.get("pod", "")) for one in short if isinstance(one, dict)) or "nobody"
        goes = f"evict {' and '.join(pods)}" if pods else "nobody goes"
        return f"{goes}; short of cpu: {pods_short}"
    acting_on = said_.get("actingOn")
    because = f" for {acting_on}" if acting_on else ""
    held = "" if said_.get("isDone", True) else ", held back: what was needed was on its way already"
    if pods:
        return f"evict {' and '.join(pods)}{because}{held}"
    crossed = said_.get("crossed")
    if isinstance(crossed, list) and crossed:
        return f"nobody goes; crossed: {', '.join(map(str, crossed))}"
    return "nobody goes; nothing is crossed"


def _pods(said_: Mapping[str, object]) -> list[str]:
    evictions = said_.get("evictions")
    if not isinstance(evictions, list):
        return []
    return [str(one.get("pod", "")) for one in evictions if isinstance(one, dict)]
