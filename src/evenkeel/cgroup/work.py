"""Steps done one after another: what the kernel refuses is noted, and with it what of the rest depends on it."""

from evenkeel.api.cgroup_path import is_within
from evenkeel.cgroup.diff import Action, Step
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.refusals import MissingController, NotAvailable
from evenkeel.cgroup.fit import Fit, Unavailable, unavailable_message
from evenkeel.cgroup.values import CPUS

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


class Work:
    """One pass: what was done, and what of the rest depends on something that failed."""

    def __init__(self, driver: Driver, fitted: Fit) -> None:
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
