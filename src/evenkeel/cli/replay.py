"""`evenkeel replay`: makes the decisions of the journal again, from their recorded inputs (E14).

With the recorded settings every decision must come out the same: a difference is an error. Other thresholds or another
policy show what would have been decided.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from evenkeel.cli.arguments import add_state_flag
from evenkeel.cli.config_flags import add_config_flags, config_from, given_fields
from evenkeel.cli.output import STRUCTURED, print_structured, printable
from evenkeel.journal.store import Journal
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.decide import Settings, State, decide, settings_from
from evenkeel.policy.eviction.thresholds import (
    Threshold,
    config_graces_seconds,
    config_reclaims,
    config_thresholds,
)
from evenkeel.pressure.decision_records import Again, eviction_said, made_again

USAGE = "[JOURNAL] [--all] [-o json|yaml] [--eviction-hard … --eviction-order … --profile … flags]"
EXAMPLES = """examples:
  evenkeel replay                                      check that every decision comes out the same
  evenkeel replay /var/lib/evenkeel/journal.db --all   and print every decision
  evenkeel replay --eviction-hard 'memory.available<1Gi'      the pods that would have been evicted then
  evenkeel replay --eviction-order priority            ranked by priority and not by class
"""


_HARD, _SOFT, _RECLAIM = "eviction_hard", "eviction_soft", "eviction_minimum_reclaim"
_GRACE = "eviction_soft_grace_period"
_SETTINGS = {
    "profile": ("profile", "order"),
    "eviction_order": ("order",),
    "eviction_max_pod_grace_period": ("max_pod_grace_period_seconds",),
    "eviction_pressure_transition_period": ("pressure_transition_period_seconds",),
    "local_storage_capacity_isolation": ("local_storage_capacity_isolation",),
}


class Replayed(NamedTuple):
    """One decision as it was recorded, and as it is made now. `differs` names the parts that are not the same."""

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
        help="a journal, or a state directory (default: --state-dir)",
    )
    parser.add_argument("--all", action="store_true", help="show every decision, not only those that differ")
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="print this form and not sentences")
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
        lost = len(journal.notes) - known  # decisions with a damaged record
        for note in journal.notes:
            print(f"warning: {printable(note)}", file=sys.stderr)
    if args.output:
        print_structured({"isWhatIf": what_if.changes_anything, "decisions": steps}, args.output)
    else:
        _print(steps, lost, what_if, shows_all=args.all)
    is_bad = lost or any(step.unreadable or (step.differs and not what_if.changes_anything) for step in steps)
    return int(bool(is_bad))


class WhatIf:
    """The thresholds and settings of a decision, with those of the command line in place of the recorded ones."""

    def __init__(self, args: argparse.Namespace) -> None:
        given = given_fields(args)
        is_whole = getattr(args, "config", None) is not None  # a file replaces all of them
        config = config_from(args)
        self._settings = settings_from(config)
        self._fields = {
            field for flag, fields in _SETTINGS.items() if is_whole or flag in given for field in fields
        }
        self._thresholds = config_thresholds(config)
        self._has_hard = is_whole or _HARD in given or "merge_default_eviction_settings" in given
        self._has_soft = is_whole or _SOFT in given
        self._reclaims = config_reclaims(config) if is_whole or _RECLAIM in given else None
        self._graces_seconds = config_graces_seconds(config) if _GRACE in given else {}

    @property
    def changes_thresholds(self) -> bool:
        return self._has_hard or self._has_soft or self._reclaims is not None or bool(self._graces_seconds)

    @property
    def changes_anything(self) -> bool:
        return self.changes_thresholds or bool(self._fields)

    def settings(self, before: Settings) -> Settings:
        return before._replace(**{field: getattr(self._settings, field) for field in self._fields})

    def thresholds(self, before: Sequence[Threshold]) -> tuple[Threshold, ...]:
        hard = self._thresholds if self._has_hard else before
        reclaims = self._reclaims
        if reclaims is None:  # another threshold keeps the recorded minimum reclaim
            reclaims = {one.signal: one.min_reclaim for one in before if one.min_reclaim is not None}
        if self._has_soft:
            soft = [one for one in self._thresholds if not one.hard]
        else:
            soft = [one._replace(grace_period_seconds=self._grace_of(one)) for one in before if not one.hard]
        found = (*(one for one in hard if one.hard), *soft)
        return tuple(one._replace(min_reclaim=reclaims.get(one.signal)) for one in found)

    def _grace_of(self, one: Threshold) -> float:
        return self._graces_seconds.get(one.signal, one.grace_period_seconds)


def _replay(journal: Journal, what_if: WhatIf) -> Iterator[Replayed]:
    # With other thresholds, earlier steps would have left another state. So each step starts from the replayed state of
    # the step before. Each watch has a state of its own.
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
    # Messages and thresholds must differ. Only the evicted pods count.
    return () if again.unreadable or _pods(again.was) == _pods(now) else ("evictions",)


def _print(steps: list[Replayed], lost: int, what_if: WhatIf, *, shows_all: bool) -> None:
    for step in steps:
        if not (shows_all or step.differs or step.unreadable):
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(step.at))
        print(printable(f"decision {step.number}, {when}: {_text(step, what_if)}"))
    differing = sum(bool(step.differs) for step in steps)
    unreadable = lost + sum(bool(step.unreadable) for step in steps)
    decisions = len(steps) + lost
    count = f"{decisions} decisions" if decisions != 1 else "1 decision"
    if what_if.changes_anything:
        print(f"{count}; {differing or 'none'} would come out differently with these settings.")
        if what_if.changes_thresholds and steps:
            print("Only the recorded moments are checked: a threshold may have been crossed between them.")
    elif differing or unreadable:
        print(f"{count}; {differing} come out differently now, {unreadable} cannot be read.")
    else:
        print(f"{count}, each made again with the same result.")


def _text(step: Replayed, what_if: WhatIf) -> str:
    if step.unreadable:
        return f"cannot be read: {step.unreadable}"
    was = _action(step.recorded)
    if not step.differs:
        return was
    if what_if.changes_anything:
        return f"{was}; with these settings: {_action(step.now)}"
    parts = "; ".join(
        f"{name} was {step.recorded.get(name)!r} and is {step.now.get(name)!r}" for name in step.differs
    )
    return f"DIFFERENT: {parts}"


def _action(decided: Mapping[str, object]) -> str:
    if "stall" in decided:
        return (
            f"a stall at memory.high; {decided.get('done') or 'it is reported'}"
            if decided["stall"]
            else "no stall"
        )
    pods = _pods(decided)
    short = decided.get("short")
    if isinstance(short, list):
        pods_short = ", ".join(str(one.get("pod", "")) for one in short if isinstance(one, dict)) or "no pod"
        evicts = f"evict {' and '.join(pods)}" if pods else "no eviction"
        return f"{evicts}; short of cpu: {pods_short}"
    acting_on = decided.get("actingOn")
    because = f" for {acting_on}" if acting_on else ""
    held = "" if decided.get("isDone", True) else ", held back: enough memory was being freed already"
    if pods:
        return f"evict {' and '.join(pods)}{because}{held}"
    crossed = decided.get("crossed")
    if isinstance(crossed, list) and crossed:
        return f"no eviction; crossed: {', '.join(map(str, crossed))}"
    return "no eviction; no threshold is crossed"


def _pods(decided: Mapping[str, object]) -> list[str]:
    evictions = decided.get("evictions")
    if not isinstance(evictions, list):
        return []
    return [str(one.get("pod", "")) for one in evictions if isinstance(one, dict)]
