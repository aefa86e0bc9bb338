"""Reconciling: read what the kernel has, compare it with the plan, do only what differs, in the diff's order.

Nothing is believed that has not been read in this pass, so drift heals, a second pass writes nothing, and whatever was
removed behind our back is made again. What the kernel refuses is reported, and everything that does not depend on it is
done all the same.
"""

from collections.abc import Collection
from typing import NamedTuple

from evenkeel.api.scalars import is_within
from evenkeel.cgroup.diff import Action, Observed, Step, diff, pods_prefix
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.kernel_refusals import MissingController, NotAvailable
from evenkeel.cgroup.kernel_files import CPUS, same_value
from evenkeel.cgroup.supported import Supported, Unavailable, fit, is_default, unavailable_message
from evenkeel.cgroup.tree import Cgroup, Tree

# Files of one cgroup that the kernel ties together: if one could not be set, setting another would fail for that
# reason, or allow more than either plan does.
TIES = {
    "cpu.max": "quota",
    "cpu.max.burst": "quota",
    "cpu.cfs_quota_us": "quota",
    "cpu.cfs_period_us": "quota",
    "cpu.cfs_burst_us": "quota",
    "memory.limit_in_bytes": "memory and swap",
    "memory.memsw.limit_in_bytes": "memory and swap",
}


class AppliedSteps:
    """One pass: what was done, and what of the rest depends on something that failed."""

    def __init__(self, driver: Driver, fitted: Supported) -> None:
        self._driver = driver
        self._blocked: set[tuple[str, str]] = set()
        self._without: list[MissingController] = []
        self._gone: list[str] = []
        self._not_removed: list[str] = []
        self._has_failed = False
        self.done: list[Step] = []
        self.skipped: list[Step] = []
        self.failures: list[CgroupError] = list(fitted.failures)
        self.unavailable = {one.file: one for one in fitted.unavailable}

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
            known = self.unavailable.get(error.file)
            paths = (*known.paths, error.path) if known is not None else (error.path,)
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
            self._without.append(error)  # missing here is missing for others: once is enough
        elif step.action == Action.REMOVE:
            self._not_removed.append(step.path)
        elif step.setting is None or error.reason in ("ENOENT", "ENODEV"):
            self._gone.append(step.path)
        else:
            self._blocked.add(_tie(step))


def _tie(step: Step) -> tuple[str, str]:
    file = step.setting.file if step.setting else ""
    # Cores that one cgroup would not let go must not be given to another.
    return ("", file) if file == CPUS else (step.path, TIES.get(file, file))


class Survey(NamedTuple):
    """What there is to do: the plan as far as it fits this kernel, what the kernel has, and the steps between them."""

    fit: Supported
    hands_off: tuple[str, ...] = ()
    observed: Observed | None = None
    steps: tuple[Step, ...] = ()


class Repair(NamedTuple):
    """Drift put right (E9): a file that somebody else had changed; or, without a file, a cgroup that somebody else had
    made or removed."""

    path: str
    file: str
    found: str
    restored: str
    rule: str
    reason: str


class Report(NamedTuple):
    """What one pass did. `done` has the steps in order; `skipped` those that a failure made impossible. `unfinished`
    are the cgroups and files that are known not to be as wanted; without a file, cgroups that should not be there."""

    survey: Survey
    done: tuple[Step, ...] = ()
    repairs: tuple[Repair, ...] = ()
    failures: tuple[CgroupError, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    skipped: tuple[Step, ...] = ()
    unfinished: frozenset[tuple[str, str]] = frozenset()

    @property
    def tree(self) -> Tree:
        return self.survey.fit.wanted


def survey(driver: Driver, tree: Tree, hands_off: Collection[str] = (), last: Survey | None = None) -> Survey:
    """What reconciling would do now. `last` saves the comparing if everything is as it was then. Raises CgroupError."""
    fitted = fit(tree, driver.lacking, last.fit if last is not None else None)
    observed = driver.observe(fitted.tree)
    untouched = tuple(hands_off)
    if last is not None and (last.fit, last.observed) == (fitted, observed) and last.hands_off == untouched:
        return last
    return Survey(fitted, untouched, observed, _steps(fitted.tree, observed, untouched, pods_prefix(tree)))


def reconcile(
    driver: Driver, tree: Tree, hands_off: Collection[str] = (), last: Report | None = None
) -> Report:
    """Makes the kernel equal to `tree`, but for what is below a path in `hands_off`. `last` is the report of the pass
    before: what differs now and was right then is drift."""
    try:
        seen = survey(driver, tree, hands_off, last.survey if last is not None else None)
    except CgroupError as error:
        return _not_seen(tree, hands_off, error)
    work = AppliedSteps(driver, seen.fit)
    for step in seen.steps:
        work.do(step)
    repairs = () if last is None else _repairs(work.done, last.tree, last)
    return _report(seen, work, repairs)


def reconcile_changed(
    driver: Driver,
    before: Tree,
    after: Tree,
    hands_off: Collection[str] = (),
    last: Report | None = None,
) -> Report:
    """Takes the kernel from the plan `before`, which a pass has applied, to the plan `after`: what differs between the
    two is read and put right, in the same order and with the same care as by `reconcile`, and nothing else is looked
    at. What others did elsewhere is for the next whole pass to find. The report is of the whole plan `after`, and does
    as `last` for a pass of either kind; `last` is the one before."""
    untouched = tuple(hands_off)
    changed, gone = _changes(before, after)
    fitted = fit(after._replace(cgroups=tuple(changed)), driver.lacking)
    try:
        seen = driver.observe_only(fitted.tree.cgroups)
    except CgroupError as error:
        return _not_seen(after, hands_off, error)
    observed = {**seen, **{path: {} for path in gone}}
    steps = _steps(fitted.tree, observed, untouched, pods_prefix(after))
    work = AppliedSteps(driver, fitted)
    for step in steps:
        work.do(step)
    report = _report(
        Survey(Supported(after, after), untouched, observed, steps),
        work,
        () if last is None else _repairs(work.done, before, last),
    )
    return report if last is None else _with_what_stays(report, changed, last)


def _with_what_stays(report: Report, changed: list[Cgroup], last: Report) -> Report:
    """The report of a pass over `changed` alone, with what the one before knew of the rest of the plan."""
    if not last.unfinished and not last.unavailable:
        return report
    looked_at = {(cgroup.path, setting.file) for cgroup in changed for setting in cgroup.settings}
    looked_at |= {(cgroup.path, "") for cgroup in changed}
    planned = {cgroup.path: cgroup for cgroup in report.tree.cgroups}
    unavailable = {one.file: one for one in report.unavailable}
    for file, message, paths in last.unavailable:
        left = tuple(
            path
            for path in paths
            if path in planned and (path, file) not in looked_at and planned[path].value(file) is not None
        )
        if left:
            now = unavailable.get(file, Unavailable(file, message, ()))
            unavailable[file] = now._replace(paths=(*now.paths, *left))
    left_over = {one for one in last.unfinished if one[0] in planned and one not in looked_at}
    return report._replace(unfinished=report.unfinished | left_over, unavailable=tuple(unavailable.values()))


def _changes(before: Tree, after: Tree) -> tuple[list[Cgroup], list[str]]:
    """The cgroups of `after` with what `before` does not set so; and the topmost of those that are only in `before`."""
    left = {cgroup.path: cgroup for cgroup in before.cgroups}
    changed = []
    for cgroup in after.cgroups:
        was = left.pop(cgroup.path, None)
        if was is cgroup:
            continue
        if was is None:
            changed.append(cgroup)
        elif was.settings != cgroup.settings:
            held = {setting.file: setting.value for setting in was.settings}
            new = [setting for setting in cgroup.settings if held.get(setting.file) != setting.value]
            if new:  # where files depend on each other, all of them are needed
                is_tied = any(setting.file in TIES for setting in new)
                changed.append(cgroup if is_tied else cgroup._replace(settings=tuple(new)))
    return changed, [path for path in left if path.rpartition("/")[0] not in left]


def _steps(tree: Tree, observed: Observed, hands_off: tuple[str, ...], ours: str) -> tuple[Step, ...]:
    steps = [
        step
        for step in diff(tree, observed, hands_off, ours)
        if not _is_absent_default(step, observed, tree) and not _holds(step, hands_off)
    ]
    return tuple(_limits_last(steps))


def _report(seen: Survey, work: AppliedSteps, repairs: tuple[Repair, ...]) -> Report:
    unfinished = {(error.path, error.file) for error in work.failures}
    unfinished |= {(step.path, step.setting.file if step.setting else "") for step in work.skipped}
    unfinished |= {(path, one.file) for one in work.unavailable.values() for path in one.paths}
    return Report(
        survey=seen,
        done=tuple(work.done),
        repairs=repairs,
        failures=tuple(work.failures),
        unavailable=tuple(work.unavailable.values()),
        skipped=tuple(work.skipped),
        unfinished=frozenset(unfinished),
    )


def _not_seen(tree: Tree, hands_off: Collection[str], error: CgroupError) -> Report:
    return Report(Survey(Supported(tree, tree), tuple(hands_off)), failures=(error,))


_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def _limits_last(steps: list[Step]) -> list[Step]:
    """What the kernel needs for a cgroup is charged to the one above it. A new one, in which nothing runs yet, is
    limited only when everything below it is made."""
    made = {step.path for step in steps if step.action == Action.CREATE}
    return sorted(
        steps,
        key=lambda step: step.path in made and bool(step.setting and step.setting.file in _MEMORY_LIMITS),
    )


def _is_absent_default(step: Step, observed: Observed, tree: Tree) -> bool:
    """A file that one cgroup does not have, for want of a controller, where the kernel's default is wanted."""
    if step.setting is None or step.before or step.path not in observed:
        return False
    return step.setting.file not in observed[step.path] and is_default(step.setting, tree.version)


def _holds(step: Step, hands_off: tuple[str, ...]) -> bool:
    """Removing a cgroup that holds a hands-off one would not be hands off."""
    return step.action == Action.REMOVE and any(is_within(path, step.path) for path in hands_off)


def _repairs(done: list[Step], tree: Tree, last: Report) -> tuple[Repair, ...]:
    """Those steps that put back what was as `tree` wanted it after the last pass."""
    if not done or last.survey.observed is None:  # nothing is known of how it was
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
            held = was.value(file)
            if held is not None and same_value(file, held, value):
                repairs.append(Repair(step.path, file, step.before, value, rule, reason))
    return tuple(repairs)
