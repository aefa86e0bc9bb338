"""Turning a feature off restores the kernel files that it wrote (B13).

A plan names only the files that its configuration has an opinion on. Another configuration, before the last restart,
may have written more: for the first pass after a start the plan is completed with the kernel's defaults.
"""

from evenkeel.cgroup.tree import Cgroup, Kind, Setting, Tree, Version
from evenkeel.cgroup.values import DEFAULTS

_RULE = "B13"
_REASON = "not set here: as the kernel makes it"
# Others may have set something on these, before us or beside us.
_NOT_ONLY_OURS = (Kind.RESERVED, Kind.ANCESTOR)


def restoring(tree: Tree) -> Tree:
    """`tree` with every file that we might have written and it does not name, at the kernel's default."""
    return tree._replace(
        cgroups=tuple(
            cgroup if cgroup.kind in _NOT_ONLY_OURS else _restored(cgroup, tree.version)
            for cgroup in tree.cgroups
        )
    )


def _restored(cgroup: Cgroup, version: Version) -> Cgroup:
    named = {setting.file for setting in cgroup.settings}
    more = [
        Setting(file, value, _RULE, _REASON) for file, value in DEFAULTS[version].items() if file not in named
    ]
    return cgroup._replace(settings=(*cgroup.settings, *more))
