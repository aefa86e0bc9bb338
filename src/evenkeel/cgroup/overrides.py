"""Settings that replace planned ones for a while, for example under memory pressure (A15, A22, C8).

They are part of the tree that is applied, each with its rule and its reason. So the pass that repairs drift keeps them,
and when they end, the planned value is restored as in any change of plan. Where no value is planned, the kernel's
default is restored.
"""

from collections.abc import Mapping

from evenkeel.cgroup.kernel_files import default_value
from evenkeel.cgroup.tree import Cgroup, Setting, Tree, Version

Wanted = Mapping[str, tuple[Setting, ...]]  # by the path of the cgroup


class Overrides:
    """The settings that each source wants now."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[Setting, ...]]] = {}
        self._made: dict[str, tuple[Cgroup, tuple[Setting, ...], Cgroup]] = {}
        # By path and file: former overrides of settings that the plan does not have.
        self._left: dict[str, dict[str, Setting]] = {}

    def set(self, source: str, wanted: Wanted) -> bool:
        """Replaces all that `source` wants; returns whether that is a change."""
        now = {path: settings for path, settings in wanted.items() if settings}
        if self._of.get(source, {}) == now:
            return False
        self._of[source] = now
        return True

    def was_set(self, path: str, setting: Setting) -> None:
        """A former agent has set this; it has to be restored."""
        self._left.setdefault(path, {})[setting.file] = setting

    def on(self, planned: Tree) -> Tree:
        """The planned tree with the wanted settings in place of the planned ones. A cgroup that is not planned is not
        made. A cgroup that has not changed is the same object as before."""
        wanted: dict[str, tuple[Setting, ...]] = {}
        for of_source in self._of.values():
            for path, settings in of_source.items():
                wanted[path] = wanted.get(path, ()) + settings
        if not wanted and not self._left:
            self._made.clear()
            return planned
        there = {cgroup.path: cgroup for cgroup in planned.cgroups}
        self._left = {path: files for path, files in self._left.items() if path in there}
        for path, settings in wanted.items():
            for one in settings if path in there else ():
                if there[path].value(one.file) is None:
                    self._left.setdefault(path, {})[one.file] = one
        for path, files in self._left.items():
            # The wanted settings come last, and replace these.
            unplanned = {file: was for file, was in files.items() if there[path].value(file) is None}
            wanted[path] = (*_ended(unplanned, planned.version), *wanted.get(path, ()))
        self._made = {path: made for path, made in self._made.items() if path in wanted}
        return planned._replace(
            cgroups=tuple(
                self._overridden(cgroup, wanted[cgroup.path]) if cgroup.path in wanted else cgroup
                for cgroup in planned.cgroups
            )
        )

    def _overridden(self, cgroup: Cgroup, wanted: tuple[Setting, ...]) -> Cgroup:
        last = self._made.get(cgroup.path)
        if last is not None and last[0] is cgroup and last[1] == wanted:
            return last[2]
        of_file = {setting.file: setting for setting in wanted}
        planned = tuple(of_file.pop(one.file, one) for one in cgroup.settings)
        made = cgroup._replace(settings=(*planned, *of_file.values()))
        self._made[cgroup.path] = (cgroup, wanted, made)
        return made


def _ended(files: Mapping[str, Setting], version: Version) -> tuple[Setting, ...]:
    """The kernel's default, for each file that has one."""
    return tuple(
        Setting(file, default, was.rule, f"no longer {was.reason}")
        for file, was in files.items()
        if (default := default_value(file, version)) is not None
    )
