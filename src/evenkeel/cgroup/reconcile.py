"""Reconciling: read what the kernel has, compare it with the plan, do only what differs, in the diff's order.

Nothing is believed that has not been read in this pass, so drift heals, a second pass writes nothing, and whatever was
removed behind our back is made again. What the kernel refuses is reported, and everything that does not depend on it is
done all the same.
"""

from collections.abc import Collection
from typing import NamedTuple

from evenkeel.api.cgroup_path import is_within
from evenkeel.cgroup.diff import Action, Observed, Step, diff
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.refusals import MissingController, NotAvailable
from evenkeel.cgroup.fit import Fit, Unavailable, fit, is_default, unavailable_message
from evenkeel.cgroup.tree import Tree
from evenkeel.cgroup.values import same_value


class Survey(NamedTuple):
    """What there is to do: the plan as far as it fits this kernel, what the kernel has, and the steps between them."""

    fit: Fit
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
    """What one pass did. `done` has the steps in order; `skipped` those that a failure made impossible."""

    survey: Survey
    done: tuple[Step, ...] = ()
    repairs: tuple[Repair, ...] = ()
    failures: tuple[CgroupError, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    skipped: tuple[Step, ...] = ()

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
    steps = [
        step
        for step in diff(fitted.tree, observed, untouched)
        if not _is_absent_default(step, observed, tree) and not _holds(step, untouched)
    ]
    return Survey(fitted, untouched, observed, tuple(_limits_last(steps)))


def reconcile(
    driver: Driver, tree: Tree, hands_off: Collection[str] = (), last: Report | None = None
) -> Report:
    """Makes the kernel equal to `tree`, but for what is below a path in `hands_off`. `last` is the report of the pass
    before: what differs now and was right then is drift."""
    try:
        seen = survey(driver, tree, hands_off, last.survey if last is not None else None)
    except CgroupError as error:
        return Report(Survey(Fit(tree, tree), tuple(hands_off)), failures=(error,))
    work = _Work(driver, seen.fit)
    for step in seen.steps:
        work.do(step)
    return Report(
        survey=seen,
        done=tuple(work.done),
        repairs=_repairs(work.done, last) if last is not None else (),
        failures=tuple(work.failures),
        unavailable=tuple(work.unavailable.values()),
        skipped=tuple(work.skipped),
    )


_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def _limits_last(steps: list[Step]) -> list[Step]:
    """What the kernel needs for a cgroup is charged to the one above it. A new one, in which nothing runs yet, is
    limited only when everything below it is made."""
    made = {step.path for step in steps if step.action == Action.CREATE}
    return sorted(
        steps,
        key=lambda step: step.path in made and bool(step.setting and step.setting.file in _MEMORY_LIMITS),
    )


# Files of one cgroup that the kernel ties together: if one could not be set, setting another would fail for that
# reason, or allow more than either plan does.
_TIES = {
    "cpu.max": "quota",
    "cpu.max.burst": "quota",
    "cpu.cfs_quota_us": "quota",
    "cpu.cfs_period_us": "quota",
    "cpu.cfs_burst_us": "quota",
    "memory.limit_in_bytes": "memory and swap",
    "memory.memsw.limit_in_bytes": "memory and swap",
}
_CPUS = "cpuset.cpus"  # cores that one cgroup would not let go must not be given to another


class _Work:
    """One pass: what was done, and what of the rest depends on something that failed."""

    def __init__(self, driver: Driver, fitted: Fit) -> None:
        self._driver = driver
        self._blocked: set[tuple[str, str]] = set()
        self._without: list[MissingController] = []
        self._gone: list[str] = []
        self._not_removed: list[str] = []
        self.done: list[Step] = []
        self.skipped: list[Step] = []
        self.failures: list[CgroupError] = list(fitted.failures)
        self.unavailable = {one.file: one for one in fitted.unavailable}

    def do(self, step: Step) -> None:
        if self._is_blocked(step):
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
    return ("", file) if file == _CPUS else (step.path, _TIES.get(file, file))


def _is_absent_default(step: Step, observed: Observed, tree: Tree) -> bool:
    """A file that one cgroup does not have, for want of a controller, where the kernel's default is wanted."""
    if step.setting is None or step.before or step.path not in observed:
        return False
    return step.setting.file not in observed[step.path] and is_default(step.setting, tree.version)


def _holds(step: Step, hands_off: tuple[str, ...]) -> bool:
    """Removing a cgroup that holds a hands-off one would not be hands off."""
    return step.action == Action.REMOVE and any(is_within(path, step.path) for path in hands_off)


def _repairs(done: list[Step], last: Report) -> tuple[Repair, ...]:
    """Those steps that put back what the last pass had made, or left, as it was wanted."""
    unfinished = {(error.path, error.file) for error in last.failures}
    unfinished |= {(step.path, step.setting.file if step.setting else "") for step in last.skipped}
    unfinished |= {(path, one.file) for one in last.unavailable for path in one.paths}
    before = {cgroup.path: cgroup for cgroup in last.tree.cgroups} if done else {}
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
