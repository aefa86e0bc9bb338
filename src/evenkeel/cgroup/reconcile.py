"""Reconciling: read what the kernel has, compare it with the plan, do only what differs, in the diff's order.

Nothing is believed that has not been read in this pass, so drift heals, a second pass writes nothing, and whatever was
removed behind our back is made again. What the kernel refuses is reported, and everything that does not depend on it is
done all the same.
"""

from collections.abc import Collection
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.cgroup_path import is_within
from evenkeel.cgroup.diff import Action, Observed, Step, diff
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.refusals import MissingController, NotAvailable
from evenkeel.cgroup.tree import Tree, Version
from evenkeel.cgroup.values import default_value, same_value


class Repair(NamedTuple):
    """Drift put right (E9): a file that somebody else had changed; or, without a file, a cgroup that somebody else had
    made or removed."""

    path: str
    file: str
    found: str
    restored: str
    rule: str
    reason: str


class Unavailable(NamedTuple):
    """A file that the kernel does not have, and the cgroups that should have it."""

    file: str
    message: str
    paths: tuple[str, ...]


class Report(NamedTuple):
    """What one pass saw and did. `done` has the steps in order; `skipped` those that a failure made impossible."""

    tree: Tree
    hands_off: tuple[str, ...] = ()
    observed: Observed = MappingProxyType({})
    done: tuple[Step, ...] = ()
    repairs: tuple[Repair, ...] = ()
    failures: tuple[CgroupError, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    skipped: tuple[Step, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.done or self.failures or self.unavailable or self.skipped)

    def is_about(self, tree: Tree, observed: Observed, hands_off: Collection[str]) -> bool:
        """Whether it is of the very same input: there is then as much to do as there was."""
        return self.observed is observed and self.tree is tree and self.hands_off == tuple(hands_off)


def reconcile(
    driver: Driver, tree: Tree, hands_off: Collection[str] = (), last: Report | None = None
) -> Report:
    """Makes the kernel equal to `tree`, but for what is below a path in `hands_off`. `last` is the report of the pass
    before: what differs now and was right then is drift."""
    try:
        observed = driver.observe(tree)
    except CgroupError as error:
        return Report(tree, tuple(hands_off), failures=(error,))
    if last is not None and last.is_quiet and last.is_about(tree, observed, hands_off):
        return last
    steps = changes(tree, observed, hands_off)
    if not steps:
        return Report(tree, tuple(hands_off), observed)
    work = _Work(driver)
    for step in steps:
        work.do(step)
    return Report(
        tree=tree,
        hands_off=tuple(hands_off),
        observed=observed,
        done=tuple(work.done),
        repairs=_repairs(work.done, last) if last is not None else (),
        failures=tuple(work.failures),
        unavailable=tuple(work.unavailable.values()),
        skipped=tuple(work.skipped),
    )


def changes(tree: Tree, observed: Observed, hands_off: Collection[str] = ()) -> tuple[Step, ...]:
    """The steps that reconciling would try. A file that the kernel does not have needs none where its default is
    wanted; and a cgroup that holds a hands-off one stays, whatever it is."""
    steps = diff(tree, observed, hands_off)
    return tuple(
        step
        for step in steps
        if not _is_absent_default(step, observed, tree.version)
        and not (step.action == Action.REMOVE and any(is_within(path, step.path) for path in hands_off))
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

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._blocked: set[tuple[str, str]] = set()
        self._without: list[MissingController] = []
        self._gone: list[str] = []
        self._kept: list[str] = []
        self.done: list[Step] = []
        self.skipped: list[Step] = []
        self.failures: list[CgroupError] = []
        self.unavailable: dict[str, Unavailable] = {}

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
            self._add_unavailable(error)
        except CgroupError as error:
            self._add_failure(step, error)
        else:
            self.done.append(step)

    def _is_blocked(self, step: Step) -> bool:
        if step.action == Action.REMOVE:
            return any(is_within(path, step.path) for path in self._kept)
        if step.setting is not None and self._without:
            controller = step.setting.file.partition(".")[0]
            if any(e.controller == controller and is_within(step.path, e.where) for e in self._without):
                return True
        return self._tie(step) in self._blocked or any(is_within(step.path, path) for path in self._gone)

    def _add_failure(self, step: Step, error: CgroupError) -> None:
        if isinstance(error, MissingController):
            self._without.append(error)  # missing for this cgroup is missing for others: once is enough
        elif step.action == Action.REMOVE:
            self._kept.append(step.path)
        elif step.setting is None or error.reason in ("ENOENT", "ENODEV"):
            self._gone.append(step.path)
        else:
            self._blocked.add(self._tie(step))
        self.failures.append(error)

    def _add_unavailable(self, error: NotAvailable) -> None:
        known = self.unavailable.get(error.file)
        message = f"{error.file} is not available on this kernel{f': {error.hint}' if error.hint else ''}"
        paths = known.paths if known else ()
        self.unavailable[error.file] = Unavailable(error.file, message, (*paths, error.path))

    @staticmethod
    def _tie(step: Step) -> tuple[str, str]:
        file = step.setting.file if step.setting else ""
        return ("", file) if file == _CPUS else (step.path, _TIES.get(file, file))


def _is_absent_default(step: Step, observed: Observed, version: Version) -> bool:
    if step.setting is None or step.before or step.path not in observed:
        return False
    file, value = step.setting.file, step.setting.value
    default = default_value(file, version)
    return file not in observed[step.path] and default is not None and same_value(file, value, default)


def _repairs(done: list[Step], last: Report) -> tuple[Repair, ...]:
    """Those steps that put back what the last pass had made, or left, as it was wanted."""
    unfinished = {(error.path, error.file) for error in last.failures}
    unfinished |= {(step.path, step.setting.file if step.setting else "") for step in last.skipped}
    unfinished |= {(path, one.file) for one in last.unavailable for path in one.paths}
    before = {cgroup.path: cgroup for cgroup in last.tree.cgroups}
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
