"""The part of a plan that the kernel of this machine supports.

A kernel without a file behaves as if the file held its default. So a setting that wants the default needs no file. Any
other setting is left out and reported, once for all cgroups that should have it.
"""

from collections.abc import Callable

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.kernel_refusals import NotAvailable
from evenkeel.cgroup.kernel_files import default_value, same_value
from evenkeel.cgroup.tree import Setting, Tree, Version
from evenkeel.named_tuples import NamedTuple


class Unavailable(NamedTuple):
    """A file that the kernel does not have, and the cgroups that should have it."""

    file: str
    message: str
    paths: tuple[str, ...]


class Supported(NamedTuple):
    """`tree` is `wanted` without the settings whose files are `lacking`. `files` are all files that `wanted` sets; None
    if they were not collected. A controller that is missing altogether is a failure."""

    wanted: Tree
    tree: Tree
    files: tuple[str, ...] | None = None
    lacking: frozenset[str] = frozenset()
    unavailable: tuple[Unavailable, ...] = ()
    failures: tuple[CgroupError, ...] = ()


def supported_part(
    wanted: Tree, lacking: Callable[[str], CgroupError | None], last: Supported | None = None
) -> Supported:
    """`lacking` says why the machine has no such file, or None if it has it. `last` is the result for the plan before:
    it is returned where it still holds."""
    same = last if last is not None and last.files is not None and last.wanted == wanted else None
    files = _files(wanted) if same is None or same.files is None else same.files
    errors = {file: error for file in files if (error := lacking(file)) is not None}
    if same is not None and same.lacking == errors.keys():
        return same
    if not errors:
        return Supported(wanted, wanted, files)
    missed: dict[str, list[str]] = {}
    cgroups = []
    for cgroup in wanted.cgroups:
        for setting in cgroup.settings:
            if setting.file in errors and not is_default(setting, wanted.version):
                missed.setdefault(setting.file, []).append(cgroup.path)
        available = tuple(setting for setting in cgroup.settings if setting.file not in errors)
        cgroups.append(cgroup._replace(settings=available))
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
    """Whether the setting is the default of the kernel."""
    default = default_value(setting.file, version)
    return default is not None and same_value(setting.file, setting.value, default)


def unavailable_message(error: CgroupError) -> str:
    return f"{error.file} is not available on this kernel{f': {error.hint}' if error.hint else ''}"
