"""Settings in place of planned ones, for as long as something out of the ordinary lasts (A22, C8).

They are part of the tree that is made, each with its rule and its reason: so the pass that repairs drift keeps them,
and when they end the planned value is put back as any other change of plan is.
"""

from collections.abc import Mapping

from evenkeel.cgroup.tree import Cgroup, Setting, Tree

Wanted = Mapping[str, tuple[Setting, ...]]  # by the cgroup's path


class Overrides:
    """All that those who may override want now, each under its name."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[Setting, ...]]] = {}
        self._made: dict[str, tuple[Cgroup, tuple[Setting, ...], Cgroup]] = {}

    def set(self, source: str, wanted: Wanted) -> bool:
        """This and nothing else is what `source` wants from now on; whether that is a change."""
        now = {path: settings for path, settings in wanted.items() if settings}
        if self._of.get(source, {}) == now:
            return False
        self._of[source] = now
        return True

    def on(self, planned: Tree) -> Tree:
        """The tree with what is wanted in place of what is planned. A file that is not planned stays unplanned, and a
        cgroup that is not there is not made. Where nothing has changed, the cgroups are the same objects as before."""
        wanted: dict[str, tuple[Setting, ...]] = {}
        for of_source in self._of.values():
            for path, settings in of_source.items():
                wanted[path] = wanted.get(path, ()) + settings
        if not wanted:
            self._made.clear()
            return planned
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
        made = cgroup._replace(settings=tuple(of_file.get(one.file, one) for one in cgroup.settings))
        self._made[cgroup.path] = (cgroup, wanted, made)
        return made
