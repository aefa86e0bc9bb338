"""Reconciling: read what the kernel has, compare it with the plan, do only what differs, in the order of the diff.

Each pass believes only what it has read itself. So drift is repaired, a second pass writes nothing, and a cgroup that
others removed is made again. A refusal of the kernel is reported, and everything that does not depend on it is still
done. A pod whose cgroups cannot be read is left out of the pass: it never keeps another pod from being reconciled.
"""

from collections.abc import Callable, Collection

from evenkeel.api.scalars import is_within
from evenkeel.cgroup.diff import Action, Observed, Step, diff, pods_prefix
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.kernel_refusals import MissingController, NotAvailable
from evenkeel.cgroup.kernel_files import CPUS, same_value
from evenkeel.cgroup.supported import Supported, Unavailable, is_default, supported_part, unavailable_message
from evenkeel.cgroup.tree import Cgroup, Kind, Tree
from evenkeel.named_tuples import NamedTuple

# Files of one cgroup that the kernel ties together. If one of them could not be set, setting another would fail for
# that reason, or allow more than the old plan and the new plan do.
TIES = {
    "cpu.max": "quota",
    "cpu.max.burst": "quota",
    "cpu.cfs_quota_us": "quota",
    "cpu.cfs_period_us": "quota",
    "cpu.cfs_burst_us": "quota",
    "memory.limit_in_bytes": "memory and swap",
    "memory.memsw.limit_in_bytes": "memory and swap",
}


class Survey(NamedTuple):
    """The work of a pass: the part of the plan that this kernel supports, the kernel's values, and the steps between
    them. `unreadable` says which cgroups of the plan could not be read, and why."""

    supported: Supported
    hands_off: tuple[str, ...] = ()
    observed: Observed | None = None
    steps: tuple[Step, ...] = ()
    unreadable: tuple[CgroupError, ...] = ()


class Repair(NamedTuple):
    """Drift that was repaired (E9): a file that others had changed, or, without a file, a cgroup that others had made
    or removed."""

    path: str
    file: str
    found: str
    restored: str
    rule: str
    reason: str


class Report(NamedTuple):
    """The result of a pass. `done` has the steps in order, `skipped` those that a failure made impossible. `unfinished`
    are the cgroups and files that are known to differ from the plan; without a file, cgroups that should not exist."""

    survey: Survey
    done: tuple[Step, ...] = ()
    repairs: tuple[Repair, ...] = ()
    failures: tuple[CgroupError, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    skipped: tuple[Step, ...] = ()
    unfinished: frozenset[tuple[str, str]] = frozenset()

    @property
    def tree(self) -> Tree:
        return self.survey.supported.wanted


def survey(driver: Driver, tree: Tree, hands_off: Collection[str] = (), last: Survey | None = None) -> Survey:
    """Finds out what a pass would do now. If nothing has changed since `last`, the result is `last`. Raises CgroupError
    if the cgroups above the pods cannot be read."""
    supported = supported_part(tree, driver.lacking, last.supported if last is not None else None)
    observed, unreadable = _observed(driver.observe, supported.tree)
    untouched = tuple(hands_off)
    if (
        last is not None
        and not unreadable
        and (last.supported, last.observed, last.hands_off, last.unreadable)
        == (supported, observed, untouched, ())
    ):
        return last
    steps = _steps(supported.tree, observed, _with_unreadable(untouched, unreadable), pods_prefix(tree))
    return Survey(supported, untouched, observed, steps, unreadable)


def reconcile(
    driver: Driver, tree: Tree, hands_off: Collection[str] = (), last: Report | None = None
) -> Report:
    """Makes the kernel equal to `tree`, except below the paths in `hands_off`. `last` is the report of the pass before:
    what was right then and differs now is drift."""
    try:
        seen = survey(driver, tree, hands_off, last.survey if last is not None else None)
    except CgroupError as error:
        return _nothing_seen(tree, hands_off, error)
    applied = AppliedSteps(driver, seen)
    for step in seen.steps:
        applied.do(step)
    repairs = () if last is None else _repairs(applied.done, last.tree, last)
    return _report(seen, applied, repairs)


def reconcile_changed(
    driver: Driver,
    before: Tree,
    after: Tree,
    hands_off: Collection[str] = (),
    last: Report | None = None,
) -> Report:
    """Takes the kernel from the plan `before`, which a pass has applied, to the plan `after`.

    Only the cgroups that differ between the two plans are read and written, in the same order and with the same care as
    by `reconcile`. Drift elsewhere is left to the next whole pass. The report covers the whole plan `after`, and a pass
    of either kind takes it as `last`. The `last` given here is the report of the pass before.
    """
    untouched = tuple(hands_off)
    changed, gone = _changes(before, after)
    supported = supported_part(after._replace(cgroups=tuple(changed)), driver.lacking)
    try:
        seen, unreadable = _observed(lambda tree: driver.observe_only(tree.cgroups), supported.tree)
    except CgroupError as error:
        return _nothing_seen(after, hands_off, error)
    observed = {**seen, **{path: {} for path in gone}}
    steps = _steps(supported.tree, observed, _with_unreadable(untouched, unreadable), pods_prefix(after))
    applied = AppliedSteps(driver, Survey(supported, untouched, observed, steps, unreadable))
    for step in steps:
        applied.do(step)
    report = _report(
        Survey(Supported(after, after), untouched, observed, steps, unreadable),
        applied,
        () if last is None else _repairs(applied.done, before, last),
    )
    return report if last is None else _with_earlier(report, changed, last)


# Reading

_OF_PODS = (Kind.POD, Kind.CONTAINER, Kind.INFRASTRUCTURE)


def _observed(observe: Callable[[Tree], Observed], tree: Tree) -> tuple[Observed, tuple[CgroupError, ...]]:
    """Reads the kernel's values for `tree`. A cgroup of a pod that cannot be read is left out, with everything below
    it, and its error is returned. Raises CgroupError if it is another cgroup that cannot be read."""
    unreadable: list[CgroupError] = []
    while True:
        try:
            return observe(tree), tuple(unreadable)
        except CgroupError as error:
            left = tuple(one for one in tree.cgroups if not is_within(one.path, error.path))
            if not any(one.path == error.path and one.kind in _OF_PODS for one in tree.cgroups):
                raise
            unreadable.append(error)
            tree = tree._replace(cgroups=left)


def _with_unreadable(hands_off: tuple[str, ...], unreadable: tuple[CgroupError, ...]) -> tuple[str, ...]:
    """`hands_off`, and the paths of cgroups that could not be read: nothing is made or removed there."""
    return (*hands_off, *(error.path for error in unreadable))


def _nothing_seen(tree: Tree, hands_off: Collection[str], error: CgroupError) -> Report:
    return Report(Survey(Supported(tree, tree), tuple(hands_off)), failures=(error,))


# Steps


def _changes(before: Tree, after: Tree) -> tuple[list[Cgroup], list[str]]:
    """The cgroups of `after` with the settings that `before` does not have; and the topmost cgroups that only `before`
    has."""
    left = {cgroup.path: cgroup for cgroup in before.cgroups}
    changed = []
    for cgroup in after.cgroups:
        was = left.pop(cgroup.path, None)
        if was is cgroup:
            continue
        if was is None:
            changed.append(cgroup)
        elif was.settings != cgroup.settings:
            old = {setting.file: setting.value for setting in was.settings}
            new = [setting for setting in cgroup.settings if old.get(setting.file) != setting.value]
            if new:  # files that the kernel ties together are compared together
                is_tied = any(setting.file in TIES for setting in new)
                changed.append(cgroup if is_tied else cgroup._replace(settings=tuple(new)))
    return changed, [path for path in left if path.rpartition("/")[0] not in left]


def _steps(tree: Tree, observed: Observed, hands_off: tuple[str, ...], ours: str) -> tuple[Step, ...]:
    return tuple(
        step
        for step in diff(tree, observed, hands_off, ours)
        if not _is_absent_default(step, observed, tree) and not _removes_any(step, hands_off)
    )


def _is_absent_default(step: Step, observed: Observed, tree: Tree) -> bool:
    """Whether the cgroup lacks the file, because it lacks the controller, and the plan wants the kernel's default."""
    if step.setting is None or step.before or step.path not in observed:
        return False
    return step.setting.file not in observed[step.path] and is_default(step.setting, tree.version)


def _removes_any(step: Step, hands_off: tuple[str, ...]) -> bool:
    """Whether the step removes a cgroup that contains one of `hands_off`."""
    return step.action == Action.REMOVE and any(is_within(path, step.path) for path in hands_off)


class AppliedSteps:
    """The steps of one pass, applied one after the other: what was done, and what is blocked by a failure."""

    def __init__(self, driver: Driver, seen: Survey) -> None:
        self._driver = driver
        self._blocked: set[tuple[str, str]] = set()
        self._without: list[MissingController] = []
        self._gone: list[str] = []
        self._not_removed: list[str] = []
        self._has_failed = False
        self.done: list[Step] = []
        self.skipped: list[Step] = []
        self.failures: list[CgroupError] = [*seen.supported.failures, *seen.unreadable]
        self.unavailable = {one.file: one for one in seen.supported.unavailable}

    def do(self, step: Step) -> None:
        if self._has_failed and self._is_blocked(step):
            self.skipped.append(step)
            return
        try:
            if step.action == Action.REMOVE:
                self._driver.remove(step.path)
            elif step.setting is None:
                self._driver.create(step.path)
            else:
                self._driver.write(step.path, step.setting.file, step.setting.value)
        except NotAvailable as error:
            earlier = self.unavailable.get(error.file)
            paths = (*earlier.paths, error.path) if earlier is not None else (error.path,)
            self.unavailable[error.file] = Unavailable(error.file, unavailable_message(error), paths)
        except CgroupError as error:
            self._add_failure(step, error)
        else:
            self.done.append(step)

    def _is_blocked(self, step: Step) -> bool:
        if step.action == Action.REMOVE:
            return any(is_within(path, step.path) for path in self._not_removed)
        if step.setting is not None and self._without:
            controller = step.setting.file.partition(".")[0]
            if any(e.controller == controller and is_within(step.path, e.where) for e in self._without):
                return True
        return _tie(step) in self._blocked or any(is_within(step.path, path) for path in self._gone)

    def _add_failure(self, step: Step, error: CgroupError) -> None:
        self.failures.append(error)
        self._has_failed = True
        if isinstance(error, MissingController):
            self._without.append(error)  # reported once for all cgroups that lack it
        elif step.action == Action.REMOVE:
            self._not_removed.append(step.path)
        elif step.setting is None or error.reason in ("ENOENT", "ENODEV"):
            self._gone.append(step.path)
        else:
            self._blocked.add(_tie(step))


def _tie(step: Step) -> tuple[str, str]:
    file = step.setting.file if step.setting else ""
    # Cores that could not be taken from one cgroup must not be given to another.
    return ("", file) if file == CPUS else (step.path, TIES.get(file, file))


# Reports


def _report(seen: Survey, applied: AppliedSteps, repairs: tuple[Repair, ...]) -> Report:
    unfinished = {(error.path, error.file) for error in applied.failures}
    unfinished |= {(step.path, step.setting.file if step.setting else "") for step in applied.skipped}
    unfinished |= {(path, one.file) for one in applied.unavailable.values() for path in one.paths}
    for cgroup in seen.supported.wanted.cgroups if seen.unreadable else ():
        if any(is_within(cgroup.path, error.path) for error in seen.unreadable):
            unfinished |= {(cgroup.path, ""), *((cgroup.path, setting.file) for setting in cgroup.settings)}
    return Report(
        survey=seen,
        done=tuple(applied.done),
        repairs=repairs,
        failures=tuple(applied.failures),
        unavailable=tuple(applied.unavailable.values()),
        skipped=tuple(applied.skipped),
        unfinished=frozenset(unfinished),
    )


def _with_earlier(report: Report, changed: list[Cgroup], last: Report) -> Report:
    """The report of a pass over `changed` alone, completed with what the report before says of the rest of the plan."""
    if not last.unfinished and not last.unavailable:
        return report
    covered = {(cgroup.path, setting.file) for cgroup in changed for setting in cgroup.settings}
    covered |= {(cgroup.path, "") for cgroup in changed}
    planned = {cgroup.path: cgroup for cgroup in report.tree.cgroups}
    unavailable = {one.file: one for one in report.unavailable}
    for file, message, paths in last.unavailable:
        left = tuple(
            path
            for path in paths
            if path in planned and (path, file) not in covered and planned[path].value(file) is not None
        )
        if left:
            now = unavailable.get(file, Unavailable(file, message, ()))
            unavailable[file] = now._replace(paths=(*now.paths, *left))
    left_over = {one for one in last.unfinished if one[0] in planned and one not in covered}
    return report._replace(unfinished=report.unfinished | left_over, unavailable=tuple(unavailable.values()))


def _repairs(done: list[Step], tree: Tree, last: Report) -> tuple[Repair, ...]:
    """The steps that restored what the last pass had left as `tree` wanted it."""
    if not done or last.survey.observed is None:  # the last pass could read nothing
        return ()
    unfinished = last.unfinished
    before = {cgroup.path: cgroup for cgroup in tree.cgroups}
    made: set[str] = set()
    repairs = []
    for step in done:
        was = before.get(step.path)
        if step.action == Action.REMOVE:
            if was is None and (step.path, "") not in unfinished:
                repairs.append(Repair(step.path, "", "made by others", "removed", "E9", "not in the plan"))
        elif step.setting is None:
            made.add(step.path)
            if was is not None and (step.path, "") not in unfinished:
                repairs.append(Repair(step.path, "", "removed by others", "made again", "E9", "in the plan"))
        elif was is not None and step.path not in made and (step.path, step.setting.file) not in unfinished:
            file, value, rule, reason = step.setting
            wanted = was.value(file)
            if wanted is not None and same_value(file, wanted, value):
                repairs.append(Repair(step.path, file, step.before, value, rule, reason))
    return tuple(repairs)
