"""A plan as far as this machine's kernel has the files for it.

Without a file, the kernel behaves as if its default were in it. So a setting that wants the default needs no file; any
other is left out and reported, once for all the cgroups that should have it.
"""

from collections.abc import Callable
from typing import NamedTuple

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.kernel_refusals import NotAvailable
from evenkeel.cgroup.kernel_files import default_value, same_value
from evenkeel.cgroup.tree import Setting, Tree, Version


class Unavailable(NamedTuple):
    """A file that the kernel does not have, and the cgroups that should have it."""

    file: str
    message: str
    paths: tuple[str, ...]


class Supported(NamedTuple):
    """`tree` is `wanted` without the settings whose files are `lacking`; `files` are all that it has, None where nobody
    has looked yet. A controller that is missing altogether is a failure."""

    wanted: Tree
    tree: Tree
    files: tuple[str, ...] | None = None
    lacking: frozenset[str] = frozenset()
    unavailable: tuple[Unavailable, ...] = ()
    failures: tuple[CgroupError, ...] = ()


def fit(
    wanted: Tree, lacking: Callable[[str], CgroupError | None], last: Supported | None = None
) -> Supported:
    """`lacking` says why the machine has no such file, None if it has. `last` is what is known already."""
    known = last if last is not None and last.files is not None and last.wanted == wanted else None
    files = _files(wanted) if known is None or known.files is None else known.files
    errors = {file: error for file in files if (error := lacking(file)) is not None}
    if known is not None and known.lacking == errors.keys():
        return known
    if not errors:
        return Supported(wanted, wanted, files)
    missed: dict[str, list[str]] = {}
    cgroups = []
    for cgroup in wanted.cgroups:
        for setting in cgroup.settings:
            if setting.file in errors and not is_default(setting, wanted.version):
                missed.setdefault(setting.file, []).append(cgroup.path)
        kept = tuple(setting for setting in cgroup.settings if setting.file not in errors)
        cgroups.append(cgroup._replace(settings=kept))
    of_controller: dict[str, CgroupError] = {}
    unavailable = []
    for file, paths in missed.items():
        error = errors[file]
        if isinstance(error, NotAvailable):
            unavailable.append(Unavailable(file, unavailable_message(error), tuple(paths)))
        else:  # one controller is missing for all of its files
            of_controller.setdefault(file.partition(".")[0], error)
    return Supported(
        wanted=wanted,
        tree=wanted._replace(cgroups=tuple(cgroups)),
        files=files,
        lacking=frozenset(errors),
        unavailable=tuple(unavailable),
        failures=tuple(of_controller.values()),
    )


def _files(tree: Tree) -> tuple[str, ...]:
    return tuple(sorted({setting.file for cgroup in tree.cgroups for setting in cgroup.settings}))


def is_default(setting: Setting, version: Version) -> bool:
    """Whether the kernel's own default is wanted."""
    default = default_value(setting.file, version)
    return default is not None and same_value(setting.file, setting.value, default)


def unavailable_message(error: CgroupError) -> str:
    return f"{error.file} is not available on this kernel{f': {error.hint}' if error.hint else ''}"
