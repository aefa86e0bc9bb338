"""Settings in place of planned ones, for as long as something out of the ordinary lasts (A15, A22, C8).

They are part of the tree that is made, each with its rule and its reason: so the pass that repairs drift keeps them,
and when they end the planned value is put back as any other change of plan is. Where none is planned, it is the
kernel's default that is put back.
"""

from collections.abc import Mapping

from evenkeel.cgroup.kernel_files import default_value
from evenkeel.cgroup.tree import Cgroup, Setting, Tree, Version

Wanted = Mapping[str, tuple[Setting, ...]]  # by the cgroup's path


class Overrides:
    """All that those who may override want now, each under its name."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[Setting, ...]]] = {}
        self._made: dict[str, tuple[Cgroup, tuple[Setting, ...], Cgroup]] = {}
        self._left: dict[
            str, dict[str, Setting]
        ] = {}  # by path and file: what was wanted, and was not planned

    def set(self, source: str, wanted: Wanted) -> bool:
        """This and nothing else is what `source` wants from now on; whether that is a change."""
        now = {path: settings for path, settings in wanted.items() if settings}
        if self._of.get(source, {}) == now:
            return False
        self._of[source] = now
        return True

    def was_set(self, path: str, setting: Setting) -> None:
        """By somebody before us, and it is to be put back."""
        self._left.setdefault(path, {})[setting.file] = setting

    def on(self, planned: Tree) -> Tree:
        """The tree with what is wanted in place of what is planned. A cgroup that is not there is not made. Where
        nothing has changed, the cgroups are the same objects as before."""
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
            # What is wanted comes after, and takes its place.
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
        known = self._made.get(cgroup.path)
        if known is not None and known[0] is cgroup and known[1] == wanted:
            return known[2]
        of_file = {setting.file: setting for setting in wanted}
        planned = tuple(of_file.pop(one.file, one) for one in cgroup.settings)
        made = cgroup._replace(settings=(*planned, *of_file.values()))
        self._made[cgroup.path] = (cgroup, wanted, made)
        return made


def _ended(files: Mapping[str, Setting], version: Version) -> tuple[Setting, ...]:
    """The kernel's default, in those files that have one."""
    return tuple(
        Setting(file, default, was.rule, f"no longer {was.reason}")
        for file, was in files.items()
        if (default := default_value(file, version)) is not None
    )
