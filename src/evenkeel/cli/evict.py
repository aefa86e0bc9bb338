"""`evenkeel evict --dry-run`: which pods would be evicted, in which order, and why (E15)."""

import argparse
from collections.abc import Iterable, Mapping

from evenkeel.api import yaml_text
from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.problems import line_of
from evenkeel.cli.arguments import add_state_flag
from evenkeel.cli.config_flags import add_config_flags, config_from
from evenkeel.cli.output import print_structured, print_table
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.host.files import read_text
from evenkeel.policy.eviction.conditions import Observation, observations
from evenkeel.policy.eviction.decide import Settings, settings_from
from evenkeel.policy.eviction.dry_run import DryRun, Step, by_shortfall, by_thresholds
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.rank import Order, Ranked
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.eviction.thresholds import Signal, Threshold, config_thresholds, threshold_amount
from evenkeel.policy.eviction.usage import Resource, resource_of
from evenkeel.policy.qos import pod_class
from evenkeel.quantity import Quantity

KIND = "EvictionSnapshot"
_NAMES_OF_TYPE = ("apiVersion", "kind")
USAGE = "--dry-run [-f SNAPSHOT] [--shortfall AMOUNT] [--signal SIGNAL] [-o table|json|yaml] [flags]"
EXAMPLES = """\
examples:
  the pods of this node that would be evicted for 2Gi of memory:
    evenkeel evict --dry-run --shortfall 2Gi
  what the thresholds would do on the node of a snapshot:
    evenkeel evict --dry-run -f examples/snapshots/memory-pressure.yaml
  the pods of a snapshot that would be evicted for 2Gi of memory:
    evenkeel evict --dry-run -f snapshot.yaml --shortfall 2Gi
  the whole order for a full disk, as in today's kubelet:
    evenkeel evict --dry-run -f snapshot.yaml --signal nodefs.available --profile kubernetes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument(
        "-f",
        "--filename",
        metavar="SNAPSHOT",
        help="a snapshot, or - for standard input (default: the agent's node)",
    )
    parser.add_argument(
        "--shortfall", metavar="AMOUNT", type=_amount, help="evict until this much is freed, such as 2Gi"
    )
    parser.add_argument(
        "--signal",
        type=_signal,
        metavar="SIGNAL",
        help=f"the resource that is short (with --shortfall: {Signal.MEMORY_AVAILABLE}); alone: the whole order for it",
    )
    parser.add_argument(
        "--order",
        choices=[*map(str, Order)],
        help="rank by class or by priority (default: that of the profile)",
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    add_state_flag(parser)
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    if not args.dry_run:
        raise EvenkeelError(
            "this command evicts no pod: the agent evicts pods by itself when it must",
            hint="add --dry-run to see which pods it would evict",
        )
    snapshot, thresholds, settings = _from_agent(args) if args.filename is None else _from_file(args)
    if args.order is not None:
        settings = settings._replace(order=Order(args.order))
    if args.shortfall is None and args.signal is None:
        result = by_thresholds(snapshot, thresholds, settings)
        signal = None
    else:
        signal = args.signal or Signal.MEMORY_AVAILABLE
        result = by_shortfall(snapshot, signal, args.shortfall, settings)
    if args.output == "table":
        _print_table(result, snapshot, settings.profile, signal, args.shortfall)
    else:
        print_structured(_data(result, snapshot, settings, signal, args.shortfall), args.output)
    return 0


def _from_file(args: argparse.Namespace) -> tuple[Snapshot, tuple[Threshold, ...], Settings]:
    config = config_from(args)
    settings = settings_from(config)
    snapshot = read_snapshot(read_text(args.filename), args.filename, settings.profile)
    return snapshot, config_thresholds(config), settings


def _from_agent(args: argparse.Namespace) -> tuple[Snapshot, tuple[Threshold, ...], Settings]:
    """The node of the agent, now. Thresholds and settings are those of the agent unless a flag overrides them."""
    from evenkeel.cli.client import client_from
    from evenkeel.cli.replay import WhatIf
    from evenkeel.journal.codec import Unreadable
    from evenkeel.journal.store import Decision
    from evenkeel.pressure.decision_records import EVICTION_KIND, replayed_eviction

    recorded = client_from(args).get("/snapshot")
    try:
        step, _ = replayed_eviction(Decision(0, 0.0, EVICTION_KIND, recorded, {}))
    except Unreadable as error:
        raise EvenkeelError(f"the agent's snapshot cannot be read: {error}") from None
    what_if = WhatIf(args)
    return step.snapshot, what_if.thresholds(step.thresholds), what_if.settings(step.settings)


# The snapshot of a file


def read_snapshot(text: str, source: str, profile: Profile) -> Snapshot:
    """The snapshot in `text`, its pods with defaults. Raises `InvalidInput` with every problem."""
    problems: list[Problem] = []
    documents = list(yaml_text.documents(text, problems))
    if not problems and len(documents) != 1:
        seen = f"{len(documents)} documents" if documents else "nothing"
        problems.append(Problem("", f"must hold one snapshot, not {seen}"))
    if problems:
        raise InvalidInput([problem._replace(source=source) for problem in problems])
    document = documents[0]
    findings = Findings()
    value = document.value
    if isinstance(value, Mapping):
        _check_kind(value, findings)
        value = {name: item for name, item in value.items() if name not in _NAMES_OF_TYPE}
    snapshot = decode(Snapshot, value, findings)
    _check_names(snapshot, findings)
    if findings.problems:
        raise InvalidInput(
            [
                problem._replace(source=source, line=line_of(document, problem.field))
                for problem in findings.problems
            ]
        )
    pods = tuple(seen._replace(pod=default_pod(seen.pod, profile)) for seen in snapshot.pods)
    return snapshot._replace(pods=pods)


def _check_kind(value: Mapping[str, object], findings: Findings) -> None:
    kind = value.get("kind", KIND)
    if kind != KIND:
        findings.problems.append(
            Problem("kind", f"must be {KIND} or missing, not {str(kind)[:60]}: this is not a snapshot")
        )


def _check_names(snapshot: Snapshot, findings: Findings) -> None:
    first: dict[str, int] = {}
    for index, seen in enumerate(snapshot.pods):
        field = f"pods[{index}].pod.metadata.name"
        if not seen.pod.metadata.name:
            findings.problems.append(Problem(field, "a pod needs a name", "FieldValueRequired"))
        elif seen.pod.key in first:
            at = first[seen.pod.key]
            findings.problems.append(
                Problem(field, f"pods[{at}] is {seen.pod.key} already", "FieldValueDuplicate")
            )
        else:
            first[seen.pod.key] = index


# Flags


def _signal(text: str) -> Signal:
    try:
        return Signal(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is no signal: write {" or ".join(Signal)}') from None


def _amount(text: str) -> int:
    try:
        quantity = Quantity.parse(text)
    except EvenkeelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if quantity.sign <= 0:
        raise argparse.ArgumentTypeError(f"must be more than nothing, not {text}: write 2Gi")
    return quantity.value


# Text


def _print_table(
    result: DryRun, snapshot: Snapshot, profile: Profile, signal: Signal | None, shortfall: int | None
) -> None:
    seen = observations(snapshot.node)
    for threshold in result.crossed:
        print(f"{_below(threshold, seen[threshold.signal])}.")
    if not result.steps:
        print(_no_eviction(result, signal))
    else:
        _print_columns(result.steps, profile)
        print()
        for number, step in enumerate(result.steps, start=1):
            first = f"after {' and '.join(step.reclaim)} were deleted: " if step.reclaim else ""
            print(f"{number}. {first}{step.eviction.message}")
    resource = result.short or Resource.MEMORY
    total = result.steps[-1].freed_so_far if result.steps else 0
    if shortfall is not None:
        covered = "covers" if total >= shortfall else "does not cover"
        print(f"\nThat frees {readable(total, resource)}, which {covered} the shortfall of"
              f" {readable(shortfall, resource)}.")  # fmt: skip
    if result.unresolved:
        still = " and ".join(dict.fromkeys(str(threshold) for threshold in result.unresolved))
        print(f"\nStill crossed after that: {still}.")
    if result.spared and (signal is None or shortfall is None or total < shortfall):
        print("\nNot evicted:")
        for one in result.spared:
            print(f"  {one.pod.key} {one.spared}{_of_request(one, resource)}")


def _print_columns(steps: Iterable[Step], profile: Profile) -> None:
    rows = [("", "POD", "CLASS", "PRIORITY", "USES", "REQUEST", "FREES", "IN ALL", "AFTER", "GRACE")]
    for number, step in enumerate(steps, start=1):
        pod = step.eviction.pod
        uses, request = _figures(step)
        rows.append(
            (
                str(number),
                pod.key,
                pod_class(pod, profile),
                str(pod.spec.priority or 0),
                uses,
                request,
                readable(step.freed, step.resource),
                readable(step.freed_so_far, step.resource),
                f"{step.after_seconds:g}s",
                f"{step.eviction.grace_period_seconds}s",
            )
        )
    print_table(rows)


def _figures(step: Step) -> tuple[str, str]:
    """Use and request of the pod, of the resource that it is evicted for."""
    reason = step.eviction.shortage
    if reason is None:
        assert step.eviction.limit is not None
        return readable(step.eviction.limit.usage_bytes, step.resource), "-"
    usage = reason.victim.usage
    request = readable(reason.victim.request, step.resource)
    return "?" if usage is None else readable(usage, step.resource), request


def _below(threshold: Threshold, seen: Observation) -> str:
    resource = resource_of(threshold.signal)
    due = readable(threshold_amount(threshold.value, seen.capacity), resource)
    kind = "hard" if threshold.hard else f"soft ({threshold.grace_period_seconds:g} s)"
    return f"{threshold.signal} is {readable(seen.available, resource)}, below the {kind} threshold of {due}"


def _no_eviction(result: DryRun, signal: Signal | None) -> str:
    if signal is None and not result.crossed:
        return "No threshold is crossed and no pod is above its own limits: no pod would be evicted."
    return "No pod would be evicted."


def _of_request(one: Ranked, resource: Resource) -> str:
    if one.usage is None or not one.request:
        return ""
    return f" ({readable(one.usage, resource)} of {one.request})"


# Data


def _data(
    result: DryRun, snapshot: Snapshot, settings: Settings, signal: Signal | None, shortfall: int | None
) -> dict[str, object]:
    from evenkeel.api.encode import encode
    from evenkeel.policy.eviction.message import considered, crossed

    seen = observations(snapshot.node)
    data: dict[str, object] = {"profile": settings.profile, "order": settings.order}
    if signal is not None:
        data["signal"] = signal
    if shortfall is not None:
        total = result.steps[-1].freed_so_far if result.steps else 0
        data |= {"shortfall": shortfall, "covered": total >= shortfall}
    data["crossed"] = [encode(crossed(one, seen[one.signal])) for one in result.crossed]
    data["evictions"] = [
        {
            "namespace": step.eviction.pod.metadata.namespace,
            "name": step.eviction.pod.metadata.name,
            "gracePeriodSeconds": step.eviction.grace_period_seconds,
            "afterSeconds": step.after_seconds,
            "resource": step.resource,
            "freed": step.freed,
            "freedSoFar": step.freed_so_far,
            "reclaimFirst": list(step.reclaim),
            "message": step.eviction.message,
            "reason": encode(step.eviction.shortage or step.eviction.limit),
        }
        for step in result.steps
    ]
    data["spared"] = [{"why": one.spared, **_plain(encode(considered(one)))} for one in result.spared]
    data["unresolved"] = [str(one) for one in result.unresolved]
    return data


def _plain(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value
