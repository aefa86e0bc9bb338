"""`evenkeel plan`: what would change in this machine's cgroups, as a diff with reasons. `--apply` changes it."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from evenkeel.agent.node.own_cgroup import not_the_pods
from evenkeel.cgroup.diff import Action, Step
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import Report, reconcile, survey
from evenkeel.cgroup.reconfigure import restoring
from evenkeel.cgroup.supported import Unavailable
from evenkeel.cli.arguments import add_state_flag
from evenkeel.cli.config_flags import add_config_flags
from evenkeel.cli.inputs import add_manifest_flag, add_node_flag, decided_from, planned_pods
from evenkeel.cli.output import STRUCTURED, Paint, paint_for, print_structured
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import on_this_machine
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.provision import PlannedPod

USAGE = "-f FILE… [--apply] [--node NODE] [--state-dir DIR] [-o diff|json|yaml] [flags]"
EXAMPLES = """examples:
  evenkeel plan -f examples/                            what would change on this machine
  evenkeel plan -f examples/ --apply                    change it, as root
  evenkeel plan -f pod.yaml --feature-gates MemoryQoS=false
  evenkeel plan -f pod.yaml --cgroup-root /other -o json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifest_flag(parser)
    add_node_flag(parser)
    parser.add_argument(
        "--apply",
        action="store_true",
        help="change it, as root; beside an agent only files can change",
    )
    parser.add_argument("-o", "--output", choices=("diff", *STRUCTURED), default="diff", help="default: diff")
    add_state_flag(parser)
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    decided = decided_from(args)
    node = on_this_machine(decided.node)
    config = node.config
    driver = driver_for(detect(), config)
    try:
        # An earlier agent may have had another configuration: settings that this plan does not name are reset (B13).
        planned = _placed(planned_pods(node, decided.admitted), args.state_dir)
        tree = restoring(plan(node, planned, driver.version, driver.naming))
        hands_off = (*config.hands_off, *not_the_pods(config))
        if args.apply:
            if _is_agents(config.cgroup_root, args.state_dir):
                _leave_pods_alone(survey(driver, tree, hands_off).steps, config.cgroup_root)
            report = reconcile(driver, tree, hands_off)
        else:
            seen = survey(driver, tree, hands_off)
            report = Report(
                seen, seen.steps, (), (*seen.supported.failures, *seen.unreadable), seen.supported.unavailable
            )
    finally:
        driver.close()
    refused = tuple(
        PodRefused(pod.metadata.namespace, pod.metadata.name, *refusal) for pod, refusal in decided.refused
    )
    if args.output in STRUCTURED:
        print_structured(_planned(report, refused, is_applied=args.apply), args.output)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(report, paint_for(), is_applied=args.apply)))
        paint = paint_for(sys.stderr)
        for pod in refused:
            print(
                f"{paint('red', 'refused')} {pod.namespace}/{pod.name}: {pod.reason}: {pod.message}",
                file=sys.stderr,
            )
    return int(bool(report.failures or report.skipped or refused))


def _is_agents(cgroup_root: str, state_directory: str) -> bool:
    """True if a running agent with this state directory manages that root."""
    from evenkeel.cli.client import Client

    try:
        theirs = Client(state_directory).get("/configz")["kubeletconfig"]["cgroupRoot"]
    except EvenkeelError:
        return False  # no agent runs there
    return os.path.normpath(str(theirs)) == os.path.normpath(cgroup_root)


def _leave_pods_alone(steps: Sequence[Step], cgroup_root: str) -> None:
    """Raises an error if a step creates or removes a cgroup. Beside an agent, only files may change: the agent would
    remove a new pod again, and a pod that is not in these manifests would be killed."""
    gone = [step.path for step in steps if step.action == Action.REMOVE]
    made = [step.path for step in steps if step.action == Action.CREATE]
    if gone or made:
        does = f"remove {gone[0]} and kill its processes" if gone else f"create {made[0]}"
        raise EvenkeelError(
            f"an agent manages the cgroups below {cgroup_root}, and this would {does}: nothing was changed",
            hint="hand pods to the agent with evenkeel apply -f, stop it first, or give another --cgroup-root",
        )


def _placed(planned: list[PlannedPod], state_directory: str) -> list[PlannedPod]:
    """The pods with the cgroups that a container runtime has created for them, as the agent has recorded."""
    if not os.path.isdir(f"{state_directory}/pods"):
        return planned
    from evenkeel.runtime.cri.container_table import placed
    from evenkeel.runtime.paths import state_paths

    paths = state_paths(state_directory)
    return [one._replace(placed=placed(one.pod.metadata.uid, paths)) for one in planned]


class StepPlanned(NamedTuple):
    action: str
    path: str
    file: str = ""
    before: str = ""
    after: str = ""
    rule: str = ""
    reason: str = ""


class Failure(NamedTuple):
    path: str
    file: str
    error: str
    message: str
    hint: str


class PodRefused(NamedTuple):
    namespace: str
    name: str
    reason: str
    message: str


class Planned(NamedTuple):
    """The output of `-o json`. `steps` have been done if `applied`; otherwise they would be done."""

    cgroup: str
    applied: bool
    steps: tuple[StepPlanned, ...]
    failures: tuple[Failure, ...]
    skipped: tuple[StepPlanned, ...]
    unavailable: tuple[Unavailable, ...]
    refused_pods: tuple[PodRefused, ...]


def _planned(report: Report, refused: tuple[PodRefused, ...], *, is_applied: bool) -> Planned:
    return Planned(
        cgroup=str(report.tree.version),
        applied=is_applied,
        steps=tuple(_step(step) for step in report.done),
        failures=tuple(_failure(error) for error in report.failures),
        skipped=tuple(_step(step) for step in report.skipped),
        unavailable=report.unavailable,
        refused_pods=refused,
    )


def _step(step: Step) -> StepPlanned:
    if step.setting is None:
        return StepPlanned(str(step.action), step.path)
    file, value, rule, reason = step.setting
    return StepPlanned(str(step.action), step.path, file, step.before, value, rule, reason)


def _failure(error: CgroupError) -> Failure:
    return Failure(error.path, error.file, error.reason, error.message, error.hint)


_SIGNS = {Action.CREATE: ("+", "green"), Action.REMOVE: ("-", "red"), Action.WRITE: ("~", "yellow")}


def _lines(report: Report, paint: Paint, *, is_applied: bool) -> Iterator[str]:
    """The steps of each cgroup, in the order of their first steps."""
    made = {step.path for step in report.done if step.action == Action.CREATE}
    together: dict[str, list[Step]] = {}
    for step in report.done:
        together.setdefault(step.path, []).append(step)
    shown = [_columns(step, made) for step in report.done if step.setting is not None]
    widths = [max((len(columns[index]) for columns in shown), default=0) for index in range(3)]
    for path, steps in together.items():
        sign, colour = _SIGNS[steps[0].action]
        yield paint(colour, f"{sign} {path}")
        for step in steps:
            if step.setting is not None:
                yield _file_line(step, made, widths, paint)
    for one in report.unavailable:
        yield f"{paint('yellow', 'not set')} {one.message} ({_count(len(one.paths), 'cgroup')})"
    for error in report.failures:
        yield f"{paint('red', 'failed')} {error}"
    if report.skipped:
        yield f"{paint('red', 'left out')} {_count(len(report.skipped), 'step')} that depend on the failed ones"
    yield _summary(report, is_applied=is_applied)


def _file_line(step: Step, made: set[str], widths: Sequence[int], paint: Paint) -> str:
    assert step.setting is not None
    file, value, rule = (text.ljust(width) for text, width in zip(_columns(step, made), widths, strict=True))
    return f"    {file}  {paint('bold', value)}  {paint('cyan', rule)}  {paint('dim', step.setting.reason)}".rstrip()


def _columns(step: Step, made: set[str]) -> tuple[str, str, str]:
    """File, value and rule. A new cgroup has only the kernel's defaults before."""
    assert step.setting is not None
    change = step.setting.value if step.path in made else f"{step.before or 'none'} → {step.setting.value}"
    return step.setting.file, change, step.setting.rule


def _summary(report: Report, *, is_applied: bool) -> str:
    counts = {action: sum(step.action == action for step in report.done) for action in Action}
    if not report.done:
        if report.failures or report.skipped:
            return "nothing was changed" if is_applied else "nothing else to do"
        return f"nothing to do: {_count(len(report.tree.cgroups), 'cgroup')} as planned"
    words = ("created", "written", "removed") if is_applied else ("to create", "to write", "to remove")
    parts = [
        f"{_count(counts[action], what)} {word}"
        for action, what, word in zip(
            (Action.CREATE, Action.WRITE, Action.REMOVE), ("cgroup", "file", "cgroup"), words, strict=True
        )
        if counts[action]
    ]
    return ", ".join(parts) + ("" if is_applied else "; --apply changes it")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
